// SPDX-License-Identifier: Apache-2.0
// Charts over time: lines for each real, and latencies as a heat map. All share one cursor.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { h, show } from "./dom";

export interface Line {
  name: string;
  /** Its place among the reals: settles colour and dashes. */
  place: number;
  values: (number | null)[];
  /** How far to trust each value, where that is known. */
  qualities?: (string | null)[];
}

export interface LineData {
  kind: "lines";
  times: number[];
  lines: Line[];
}

export interface HeatData {
  kind: "heat";
  times: number[];
  stepS: number;
  /** Where buckets begin; one more than there are. */
  floors: number[];
  /** By time: pairs of bucket and count. */
  cells: [number, number][][];
}

export interface Look {
  title: string;
  /** Half a sentence: what a point is. */
  about: string;
  format: (value: number) => string;
  /** The same at the axis. */
  tick: (value: number) => string;
  scale: "log" | "zero";
  /** A value that holds until the next one. */
  steps?: boolean;
}

const HEIGHT = 210;
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const COLOURS = 8;
const SYNC = uPlot.sync("time");

export function colour(place: number): string {
  return `var(--series-${place % COLOURS})`;
}

export function dashed(place: number): boolean {
  return Math.floor(place / COLOURS) % DASHES.length !== 0;
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Bounds of 1, 2 or 5 times a power of ten around what is there. */
function logBounds(low: number, high: number): [number, number] {
  const nice = (value: number, up: boolean): number => {
    const power = 10 ** Math.floor(Math.log10(value));
    const steps = up ? [1, 2, 5, 10] : [10, 5, 2, 1];
    const found = steps.find((step) => (up ? step * power >= value * 0.999 : step * power <= value * 1.001));
    return (found ?? 1) * power;
  };
  const [from, to] = [nice(low / 1.1, false), nice(high * 1.1, true)];
  return to / from < 4 ? [nice(from / 2.1, false), to] : [from, to];
}

function logSplits(low: number, high: number): number[] {
  const wide = high / low > 300;
  const splits: number[] = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    for (const step of wide ? [1] : [1, 2, 5]) {
      const value = power * step;
      if (value >= low * 0.999 && value <= high * 1.001) splits.push(value);
    }
  }
  return splits;
}

function zeroSplits(high: number): number[] {
  const power = 10 ** Math.floor(Math.log10(high / 2));
  const step = [1, 2, 2.5, 5, 10].map((of) => of * power).find((of) => high / of <= 4.5) ?? power;
  return Array.from({ length: Math.floor(high / step + 0.001) + 1 }, (_, i) => i * step);
}

function clock(s: number): string {
  return new Date(s * 1e3).toTimeString().slice(0, 8);
}

export class Chart {
  readonly root: HTMLElement;
  private readonly place: HTMLElement;
  private readonly readout: HTMLElement;
  private readonly empty: HTMLElement;
  private plot: uPlot | undefined;
  private shape = "";
  private data: LineData | HeatData = { kind: "lines", times: [], lines: [] };
  private bounds: [number, number] = [0, 1];
  private range: [number, number] = [0, 1];
  private marked: string | null = null;

  constructor(private readonly look: Look) {
    this.place = h("div", { class: "plot", tabindex: 0, role: "img" });
    this.readout = h("p", { class: "readout", "aria-hidden": "true" });
    this.empty = h("p", { class: "empty" });
    this.root = h("figure", { class: "chart" }, h("figcaption", {}, h("strong", {}, look.title), " ", h("span", {}, look.about)), this.readout, this.place);
    this.place.append(this.empty);
    this.place.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.fit()).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.rebuild());
    this.tell(null);
  }

  /** Shows these data from `from` to `to` (seconds since 1970); `spoken` is said in their place. */
  update(data: LineData | HeatData, [from, to]: [number, number], spoken: string): void {
    this.data = data;
    this.range = [from, to];
    this.bounds = this.extent();
    this.place.setAttribute("aria-label", `${this.look.title}: ${spoken}`);
    const isEmpty = data.kind === "lines" ? data.lines.every((line) => line.values.every((value) => value === null)) : data.cells.every((cells) => cells.length === 0);
    this.empty.textContent = isEmpty ? "none: no response was measured in this time" : "";
    const shape = JSON.stringify(data.kind === "lines" ? data.lines.map((line) => [line.name, line.place]) : "heat");
    if (shape !== this.shape || !this.plot) {
      this.shape = shape;
      this.rebuild();
    } else {
      this.plot.setData(this.columns(), false);
      this.plot.batch(() => {
        this.plot!.setScale("x", { min: from, max: to });
        this.plot!.setScale("y", { min: this.bounds[0], max: this.bounds[1] });
      });
    }
    this.tell(this.plot?.cursor.idx ?? null);
  }

  /** Brings one real to the front. */
  mark(name: string | null): void {
    if (this.marked === name || this.data.kind !== "lines") return;
    this.marked = name;
    const index = this.data.lines.findIndex((line) => line.name === name);
    this.plot?.setSeries(index < 0 ? null : index + 1, { focus: true }, false);
  }

  private columns(): uPlot.AlignedData {
    const data = this.data;
    if (data.kind === "lines") return [data.times, ...data.lines.map((line) => line.values)];
    return [data.times, data.times.map(() => null)];
  }

  private extent(): [number, number] {
    const values: number[] = [];
    if (this.data.kind === "lines") {
      for (const line of this.data.lines) for (const value of line.values) if (value !== null) values.push(value);
    } else {
      for (const cells of this.data.cells) for (const [at] of cells) values.push(this.data.floors[at]!, this.data.floors[at + 1]!);
    }
    if (this.look.scale === "zero") {
      const high = values.reduce((a, b) => Math.max(a, b), 0);
      return [0, high > 0 ? high * 1.1 : 1];
    }
    const positive = values.filter((value) => value > 0);
    if (!positive.length) return [1e3, 1e5];
    const [low, high] = [positive.reduce((a, b) => Math.min(a, b)), positive.reduce((a, b) => Math.max(a, b))];
    return logBounds(low, high);
  }

  private rebuild(): void {
    const width = this.place.clientWidth;
    this.plot?.destroy();
    this.plot = undefined;
    if (width === 0) return;
    const [ink, grid] = [css("--dim"), css("--line")];
    const lines = this.data.kind === "lines" ? this.data.lines : [];
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: `12px ${css("--font")}` };
    const options: uPlot.Options = {
      width,
      height: HEIGHT,
      padding: [8, 26, 0, 0],
      legend: { show: false },
      focus: { alpha: 0.25 },
      cursor: {
        y: false,
        drag: { x: false, y: false, setScale: false },
        sync: { key: SYNC.key, setSeries: false },
        points: { size: 7, width: 0, fill: (_, i) => css(`--series-${(lines[i - 1]?.place ?? 0) % COLOURS}`) },
      },
      scales: {
        x: { time: true, auto: false, min: this.range[0], max: this.range[1] },
        y: { auto: false, distr: this.look.scale === "log" ? 3 : 1, min: this.bounds[0], max: this.bounds[1] },
      },
      axes: [
        {
          ...axis,
          size: 26,
          space: 70,
          incrs: [15, 30, 60, 120, 300],
          values: (_, splits) => splits.map((s) => clock(s).slice(0, s % 60 ? 8 : 5)),
        },
        {
          ...axis,
          size: 64,
          splits: () => (this.look.scale === "log" ? logSplits(...this.bounds) : zeroSplits(this.bounds[1])),
          filter: (_, splits) => splits,
          values: (_, splits) => splits.map((value) => this.look.tick(value)),
        },
      ],
      series: [
        {},
        ...(this.data.kind === "heat"
          ? [{ show: true, paths: () => null, points: { show: false } }]
          : lines.map((line) => this.series(line))),
      ],
      hooks: {
        setCursor: [(plot) => this.tell(plot.cursor.idx ?? null)],
        drawAxes: [(plot) => this.drawHeat(plot)],
      },
    };
    this.plot = new uPlot(options, this.columns(), this.place);
  }

  private series(line: Line): uPlot.Series {
    return {
      stroke: css(`--series-${line.place % COLOURS}`),
      dash: DASHES[Math.floor(line.place / COLOURS) % DASHES.length]!,
      width: 2,
      spanGaps: false,
      // A value between two that are missing makes no line.
      points: { show: true, filter: (plot, index) => lone(plot.data[index] as (number | null)[]), size: 5, width: 0, fill: css(`--series-${line.place % COLOURS}`) },
      ...(this.look.steps ? { paths: uPlot.paths.stepped!({ align: -1 }) } : {}),
    };
  }

  /** Each column is how the samples of its time are spread: the more it stands out, the larger the share. */
  private drawHeat(plot: uPlot): void {
    const data = this.data;
    if (data.kind !== "heat") return;
    const { ctx, bbox } = plot;
    const ramp = Array.from({ length: 7 }, (_, i) => css(`--heat-${i}`));
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const [column, cells] of data.cells.entries()) {
      const all = cells.reduce((sum, [, n]) => sum + n, 0);
      const end = data.times[column]!;
      const before = data.times[column - 1] ?? end - data.stepS;
      const begin = Math.max(before, end - 3 * data.stepS);
      const [left, right] = [plot.valToPos(begin, "x", true), plot.valToPos(end, "x", true)];
      for (const [at, n] of cells) {
        const [low, high] = [plot.valToPos(data.floors[at]!, "y", true), plot.valToPos(data.floors[at + 1]!, "y", true)];
        // The square root, because the slow hundredth is what people look for.
        ctx.fillStyle = ramp[Math.min(6, Math.floor(Math.sqrt(n / all) * 7))]!;
        ctx.fillRect(Math.floor(left), Math.floor(high), Math.ceil(right - left), Math.ceil(low - high));
      }
    }
    ctx.restore();
  }

  /** What stands under the cursor. */
  private tell(index: number | null): void {
    const data = this.data;
    const time = index === null ? undefined : data.times[index];
    if (time === undefined || index === null) {
      show(this.readout, h("span", { class: "hint" }, data.kind === "heat" ? "more contrast: a larger share of the responses" : "\u00a0"));
      return;
    }
    if (data.kind === "heat") {
      const cells = data.cells[index]!;
      const all = cells.reduce((sum, [, n]) => sum + n, 0);
      const [low, high] = [cells[0], cells[cells.length - 1]];
      const text = low && high ? `${all} responses, ${this.look.format(data.floors[low[0]]!)} to ${this.look.format(data.floors[high[0] + 1]!)}` : "no response";
      show(this.readout, h("time", {}, clock(time)), h("span", {}, text));
      return;
    }
    const known = data.lines.filter((line) => line.values[index] !== null && line.values[index] !== undefined);
    const sorted = known.length > 4 ? [...known].sort((a, b) => b.values[index]! - a.values[index]!).slice(0, 4) : known;
    show(
      this.readout,
      h("time", {}, clock(time)),
      sorted.map((line) => h("span", {}, swatch(line.place), this.look.format(line.values[index]!), line.qualities?.[index] && h("small", {}, ` ${line.qualities[index]}`))),
      known.length > 4 && h("span", { class: "hint" }, `and ${known.length - 4} below`),
      known.length === 0 && h("span", {}, "none"),
    );
  }

  private fit(): void {
    const width = this.place.clientWidth;
    if (!this.plot) this.rebuild();
    else if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  /** The cursor by keys. */
  private step(event: KeyboardEvent): void {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const times = this.data.times;
    if (event.key === "Escape") this.plot?.setCursor({ left: -10, top: -10 });
    if (!by || !this.plot || !times.length) return;
    event.preventDefault();
    const at = this.plot.cursor.idx ?? times.length - (by > 0 ? 2 : 0);
    const next = Math.min(times.length - 1, Math.max(0, at + by));
    this.plot.setCursor({ left: this.plot.valToPos(times[next]!, "x"), top: 10 });
  }
}

/** Where values stand alone. */
function lone(values: (number | null)[]): number[] {
  const missing = (i: number): boolean => (values[i] ?? null) === null;
  return [...values.keys()].filter((i) => !missing(i) && missing(i - 1) && missing(i + 1));
}

/** A real's mark, beside its name and its figures. */
export function swatch(place: number): HTMLElement {
  return h("i", { class: `swatch s${place % COLOURS}${dashed(place) ? " dashed" : ""}`, "aria-hidden": "true" });
}
