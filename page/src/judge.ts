// SPDX-License-Identifier: Apache-2.0
// What is wrong, in sentences: the first thing that an engineer on call reads.

import type { NextHop, Real, Stats, Status, Vip } from "./api";
import type { History } from "./history";
import { count, latency, percent, span } from "./format";

export type Level = "good" | "off" | "warn" | "bad";

export interface Finding {
  level: Level;
  /** What is the matter, without figures: the same as long as it is. */
  gist: string;
  text: string;
}

/** A median of this many times that of the other reals is slow. */
const SLOW = 2;
/** Words of a controller for a real that is slow. */
const BLAMES = new Set(["floor", "suspect", "no_receiver"]);
/** Those for one that it takes weight from, and how much it has taken when that is news. */
const TAKES = new Set(["high", "above"]);
const TAKEN = 0.75;
/** Seconds of drops that are told of. */
export const DROPS_S = 60;

function median(values: number[]): number | null {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (!sorted.length) return null;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Whether what is measured of it is graded better than low. */
function isSure(real: Real): boolean {
  return real.latency.p50_us !== null && ["medium", "high"].includes(real.latency.quality);
}

/** How many times the median of the others its own is; null where that is not known well. */
export function slowness(vip: Vip, real: Real): number | null {
  if (!isSure(real)) return null;
  const others = vip.reals.filter((of) => of !== real && isSure(of)).map((of) => of.latency.p50_us!);
  const usual = median(others);
  return usual ? real.latency.p50_us! / usual : null;
}

export function isSlow(vip: Vip, real: Real): boolean {
  if (real.state !== "active") return false;
  const taken = TAKES.has(real.reason) && (share(real) ?? 1) < TAKEN;
  return taken || BLAMES.has(real.reason) || (slowness(vip, real) ?? 0) >= SLOW;
}

/** Its share of the weight that it is meant to have; null where that is none. */
export function share(real: Real): number | null {
  return real.meant_weight > 0 ? real.effective_weight / real.meant_weight : null;
}

/** The state that is shown: slow is a state to people. */
export function mark(vip: Vip, real: Real): { level: Level; word: string; sign: string } {
  if (real.state === "down") return { level: "bad", word: "down", sign: "✕" };
  if (real.state !== "active") return { level: "off", word: real.state, sign: "–" };
  if (isSlow(vip, real)) return { level: "warn", word: "slow", sign: "▲" };
  if (real.health?.state === "unknown") return { level: "off", word: "not yet probed", sign: "?" };
  if (!real.health) return { level: "off", word: "not probed", sign: "○" };
  return { level: "good", word: "up", sign: "●" };
}

export function findings(vip: Vip, stats: Stats): Finding[] {
  const found: Finding[] = [];
  const nowNs = stats.at.monotonic_ns;
  if (!vip.ready) {
    found.push({ level: "bad", gist: "Not ready", text: `Not ready: ${vip.reals_up} of at least ${vip.min_healthy} reals ${vip.reals_up === 1 ? "is" : "are"} up.` });
  }
  for (const real of vip.reals) {
    if (real.state === "down" && real.health) {
      const since = span((nowNs - real.health.since_monotonic_ns) / 1e9);
      found.push({ level: "bad", gist: `${real.address} is down`, text: `${real.address} has been down for ${since}: ${real.health.reason}.` });
    }
    if (!isSlow(vip, real)) continue;
    const [times, part] = [slowness(vip, real), share(real)];
    const p99 = real.latency.p99_us;
    const figures = [
      times !== null && times >= 1.5 && `its median is ${times.toFixed(times < 9.5 ? 1 : 0)} times the others’`,
      p99 !== null && `p99 ${latency(p99)}, graded ${real.latency.quality}`,
      part !== null && part < 0.95 && `it has ${percent(part)} of its weight`,
    ].filter(Boolean);
    found.push({ level: "warn", gist: `${real.address} is slow`, text: `${real.address} is slow: ${figures.join(", ") || real.reason_text}.` });
  }
  if (!found.length) found.push(wellSentence(vip));
  return found;
}

function wellSentence(vip: Vip): Finding {
  const active = vip.reals.filter((real) => real.state === "active");
  const measured = active.filter((real) => real.latency.p99_us !== null);
  const p99s = measured.map((real) => real.latency.p99_us!);
  const low = measured.filter((real) => !isSure(real)).length;
  const probed = active.some((real) => real.health);
  const all = active.length === vip.reals.length ? (active.length === 2 ? "Both" : `All ${active.length}`) : `${active.length} of ${vip.reals.length}`;
  const who = vip.reals.length === 1 && active.length === 1 ? "The one real takes connections" : `${all} reals take connections`;
  const how = p99s.length ? `p99 from ${latency(Math.min(...p99s))} to ${latency(Math.max(...p99s))}${low ? `, graded low at ${low} of ${p99s.length}` : ""}` : "no response was measured in the last seconds";
  const unknown = probed ? "" : " Whether they serve is not known: this VIP has no health check.";
  return { level: probed ? "good" : "off", gist: `${who}.${unknown}`, text: `${who}; ${how}.${unknown}` };
}

/** Why packets may not leave by a next hop; null if they do. */
export function hopFault(hop: NextHop, status: Status, stats: Stats): string | null {
  switch (hop.state) {
    case "silent":
      return `The ${hop.family} gateway ${hop.gateway} has not answered for ${span((stats.at.monotonic_ns - hop.since_monotonic_ns) / 1e9)}: packets go to its last MAC address.`;
    case "none":
      return `No gateway is known for ${hop.family} reals: packets to them are dropped.`;
    case "no_source":
      return `There is no source address for packets to ${hop.family} reals, which are dropped: give ${status.interface} one of global scope, or set ${hop.family === "ipv6" ? "source6" : "source"} of [encap].`;
    default:
      return null;
  }
}

/** What concerns the whole daemon. */
export function ofDaemon(status: Status, stats: Stats, history: History): Finding[] {
  const found: Finding[] = [];
  const say = (level: Level, text: string, gist = text): void => void found.push({ level, gist, text });
  for (const hop of stats.next_hop) {
    const fault = hopFault(hop, status, stats);
    if (fault) say("bad", fault, `The ${hop.family} next hop: ${hop.state.replace("_", " ")}`);
  }
  if (status.data_plane_error) say("bad", `The data plane: ${status.data_plane_error}`);
  for (const held of status.held_vips) say("bad", `${held.text[0]!.toUpperCase()}${held.text.slice(1)}`);
  if (status.last_good) say("warn", "The configuration was refused at the start; its last good copy is in force.");
  if (status.last_reload_error) say("warn", `The last reload was refused, the configuration before it is in force: ${status.last_reload_error}`);
  if (status.unfinished) say("warn", `Not done yet: ${status.unfinished}`);
  if (status.state_error) say("warn", `What is set by hand would not outlive the daemon: ${status.state_error}`);
  const drops = recentDrops(history, stats.at.monotonic_ns);
  const sum = [...drops.values()].reduce((a, b) => a + b, 0);
  if (sum > 0) {
    const names = [...drops.entries()].sort((a, b) => b[1] - a[1]).map(([name]) => name);
    say("warn", `${count(sum)} packet${sum === 1 ? " was" : "s were"} dropped in the last minute: ${names.slice(0, 3).join(", ")}${names.length > 3 ? ", …" : ""}.`, "Packets were dropped");
  }
  return found;
}

/** Packets by verdict in the last minute. */
export function recentDrops(history: History, nowNs: number): Map<string, number> {
  const sums = new Map<string, number>();
  for (const step of history.drops) {
    if (step.end.monotonic_ns <= nowNs - DROPS_S * 1e9) continue;
    for (const [name, packets] of Object.entries(step.packets)) sums.set(name, (sums.get(name) ?? 0) + packets);
  }
  return sums;
}
