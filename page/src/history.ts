// SPDX-License-Identifier: Apache-2.0
// What the page remembers: steps of the VIP that is shown, moves and drops. The daemon's own
// memory begins anew with it; what was seen before stays here.

import type { DropStep, Move, Step, Timeline } from "./api";

/** As long as the daemon remembers. */
export const KEPT_S = 900;

export class History {
  private steps = new Map<string, Step[]>();
  bucketFloorsUs: number[] = [];
  stepS = 2;
  moves: Move[] = [];
  drops: DropStep[] = [];
  vip = "";
  /** When the daemon was started; what ended before is of another. */
  startedNs = 0;

  /** Turns to another VIP; that of before is asked for again when it is shown again. */
  turnTo(vip: string): void {
    if (vip !== this.vip) {
      this.vip = vip;
      this.steps.clear();
    }
  }

  /** The machine was started anew: nothing of before has a place on its clock. */
  forget(): void {
    this.steps.clear();
    this.moves = [];
    this.drops = [];
  }

  /** Where the newest step ended. */
  newestStep(): number {
    return Math.max(0, ...[...this.steps.values()].map((steps) => steps.at(-1)?.end.monotonic_ns ?? 0));
  }

  take(timeline: Timeline): void {
    this.bucketFloorsUs = timeline.bucket_floors_us;
    this.stepS = timeline.step_ns / 1e9;
    const oldest = timeline.at.monotonic_ns - KEPT_S * 1e9;
    const reals = new Set(timeline.reals.map((of) => of.real));
    for (const real of this.steps.keys()) if (!reals.has(real)) this.steps.delete(real);
    for (const { real, steps } of timeline.reals) {
      this.steps.set(real, merged(this.steps.get(real) ?? [], steps, (step) => step.end.monotonic_ns, oldest));
    }
  }

  takeDrops(steps: DropStep[], nowNs: number): void {
    this.drops = merged(this.drops, steps, (step) => step.end.monotonic_ns, nowNs - KEPT_S * 1e9);
  }

  takeMoves(moves: Move[]): void {
    const newest = this.moves.at(-1)?.at.monotonic_ns ?? 0;
    this.moves = [...this.moves, ...moves.filter((move) => move.at.monotonic_ns > newest)].slice(-1000);
  }

  /** Steps of a real; none if another VIP was turned to, which may have the same server. */
  of(vip: string, real: string): Step[] {
    return (vip === this.vip && this.steps.get(real)) || [];
  }

  /** A rate over the last seconds; nothing where there is no whole step. */
  rate(vip: string, real: string, what: (step: Step) => number, seconds: number): number | null {
    const steps = this.of(vip, real);
    const last = steps.at(-1);
    if (!last) return null;
    const from = last.end.monotonic_ns - seconds * 1e9;
    let [sum, ns] = [0, 0];
    for (const [index, step] of steps.entries()) {
      if (step.end.monotonic_ns <= from) continue;
      sum += what(step);
      ns += this.lengthNs(step, steps[index - 1]);
    }
    return sum / (ns / 1e9);
  }

  /** From the end of the step before, but not over the time in which there was no daemon. */
  private lengthNs(step: Step, before: Step | undefined): number {
    const [from, to] = [before?.end.monotonic_ns, step.end.monotonic_ns];
    const follows = from !== undefined && !(from < this.startedNs && this.startedNs < to);
    return follows ? to - from : this.stepS * 1e9;
  }
}

function merged<T>(before: T[], more: T[], at: (of: T) => number, oldest: number): T[] {
  const newest = before.length ? at(before[before.length - 1]!) : -1;
  return [...before, ...more.filter((of) => at(of) > newest)].filter((of) => at(of) > oldest);
}
