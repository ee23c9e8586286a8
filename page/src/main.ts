// SPDX-License-Identifier: Apache-2.0
// The page: asks the daemon every two seconds, and shows what it says.

import "./style.css";
import { type Connections, type DropStep, type Explanation, Locked, type Move, type Real, Refusal, type Stats, type Status, type Timeline, type Vip, ask, useToken } from "./api";
import { Chart, type HeatData, type Line, type LineData } from "./charts";
import { type Child, h, show } from "./dom";
import { clock, count, latency, tick, weight } from "./format";
import { History } from "./history";
import * as views from "./views";

/** Time between two looks; steps of the daemon are as long. */
const EVERY_MS = 2000;
/** Reals that a chart shows at most. */
const LINES_MAX = 24;

const head = document.getElementById("head")!;
const main = document.getElementById("main")!;
const history = new History();

let status: Status | null = null;
let stats: Stats | null = null;
/** The VIP of the address bar, where it is not among those that are listed. */
let opened: Vip | null = null;
/** The place of the first VIP that is listed, after those of the parts before. */
let parts = [0];
let explanation: Explanation | null = null;
let lostAt: Date | null = null;
/** Why a token is asked for; null: none is. */
let locked: string | null = null;
let spanS = 300;
let allMoves = false;
let heaviest: Connections | string | null = null;
let looking = false;
let timer = 0;
let round = 0;

const charts = {
  p99: new Chart({ title: "p99", about: "99 of 100 responses are faster, in steps of 2 s", format: latency, tick, scale: "log" }),
  p50: new Chart({ title: "p50", about: "half of the responses are faster", format: latency, tick, scale: "log" }),
  heat: new Chart({ title: "Heat map", about: "how the responses are spread", format: latency, tick, scale: "log" }),
  weight: new Chart({ title: "Weight", about: "in force, in the configuration’s unit", format: weight, tick: weight, scale: "zero", steps: true }),
  open: new Chart({ title: "Open connections", about: "an estimate", format: count, tick: count, scale: "zero" }),
  asked: new Chart({ title: "Requests", about: "a second", format: count, tick: count, scale: "zero" }),
};

/** The VIP and the real of the address bar. */
function wanted(): { vip?: string; real?: string } {
  const [vip, real] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { vip: vip || undefined, real: real || undefined };
}

function shownVip(): Vip | undefined {
  const name = wanted().vip;
  if (!name) return stats?.vips[0];
  return stats?.vips.find((vip) => vip.name === name) ?? (opened?.name === name ? opened : undefined);
}

async function ofAddress(listed: Stats): Promise<Vip | null> {
  const name = wanted().vip;
  if (!name || listed.vips.length === listed.part.total || listed.vips.some((vip) => vip.name === name)) return null;
  return ask<Vip>(`v1/vips/${encodeURIComponent(name)}`).catch((error: unknown) => {
    if (error instanceof Refusal && !(error instanceof Locked)) return null;
    throw error;
  });
}

async function look(): Promise<void> {
  window.clearTimeout(timer);
  const mine = ++round;
  try {
    const [newStatus, newStats] = await Promise.all([ask<Status>("v1/status"), ask<Stats>(`v1/stats?from=${parts.at(-1)}`)]);
    const newOpened = await ofAddress(newStats);
    if (mine !== round) return;
    if (!newStats.vips.length) parts = [0];
    if (stats && newStats.at.monotonic_ns < stats.at.monotonic_ns) history.forget();
    [status, stats, opened] = [newStatus, newStats, newOpened];
    history.startedNs = newStatus.started.monotonic_ns;
    await lookAtVip(mine);
    if (mine !== round) return;
    [lostAt, locked] = [null, null];
  } catch (error) {
    if (mine !== round) return;
    // A refusal is an answer; what is shown of it is asked for again.
    if (error instanceof Locked) {
      [locked, lostAt] = [error.message, null];
      draw();
      return;
    }
    if (!(error instanceof Refusal)) lostAt ??= new Date();
  }
  draw();
  // A hidden page is not read, and the daemon remembers a quarter of an hour.
  if (!document.hidden) timer = window.setTimeout(() => void look(), EVERY_MS);
}

async function lookAtVip(mine: number): Promise<void> {
  const vip = shownVip();
  const moved = history.moves.at(-1)?.at.monotonic_ns ?? 0;
  const dropped = history.drops.at(-1)?.end.monotonic_ns ?? 0;
  if (vip) history.turnTo(vip.name);
  const base = vip && `v1/vips/${encodeURIComponent(vip.name)}`;
  const real = wanted().real;
  const [newMoves, newDrops, timeline, explained] = await Promise.all([
    ask<{ moves: Move[] }>(`v1/moves?since_monotonic_ns=${moved}`),
    ask<{ steps: DropStep[] }>(`v1/drops?since_monotonic_ns=${dropped}`),
    base ? ask<Timeline>(`${base}/timeline?since_monotonic_ns=${history.newestStep()}`) : null,
    base && real && vip.reals.some((of) => of.address === real) ? ask<Explanation>(`${base}/reals/${encodeURIComponent(real)}/decisions`) : null,
  ]);
  if (mine !== round) return;
  history.takeMoves(newMoves.moves);
  history.takeDrops(newDrops.steps, stats!.at.monotonic_ns);
  if (timeline) history.take(timeline);
  explanation = explained;
}

function link(): { alive: boolean; word: string; note?: string } {
  if (locked !== null) return { alive: false, word: "a token is needed" };
  if (lostAt) return { alive: false, word: "disconnected", note: ` since ${clock(lostAt.getTime() * 1e6)}` };
  if (!stats) return { alive: true, word: "connecting" };
  return { alive: true, word: "live", note: `, ${clock(stats.at.realtime_ns)}` };
}

function draw(): void {
  show(head, views.head(status, link()));
  document.body.classList.toggle("lost", lostAt !== null);
  const lost = lostAt && h("p", { class: "lost-note", "data-key": "lost", role: "alert" }, "The daemon does not answer. Asking again every 2 s; ", stats ? "what is shown is from before." : "nothing is known yet.");
  if (locked !== null) {
    show(main, views.lock(locked));
    if (document.activeElement === document.body) document.getElementById("token")?.focus();
    return;
  }
  if (!stats || !status) {
    if (lost) show(main, lost);
    return;
  }
  const vip = shownVip();
  const { vip: name, real: address } = wanted();
  document.title = vip ? `${vip.name} · Causeway` : "Causeway";
  if (!vip) {
    const why = stats.part.total ? `There is no VIP ${name} here.` : "There is no VIP here yet; [[vip]] in the configuration makes one.";
    show(main, lost, h("p", { class: "wait" }, why), views.services(stats, ""), views.drops(stats, history), views.network(stats, status));
    return;
  }
  const place = vip.reals.findIndex((real) => real.address === address);
  const real = vip.reals[place];
  const body: Child[] = real
    ? [views.one(vip, real, place, stats, explanation), chartPlaces(), views.moves(history.moves, { vip: vip.name, real: real.address }, allMoves, vip.control !== "off")]
    : [
        address && h("p", { class: "wait" }, `There is no real ${address} in ${vip.name}.`),
        views.overview(vip, stats, status, history),
        chartPlaces(),
        views.moves(history.moves, { vip: vip.name }, allMoves, vip.control !== "off"),
        views.drops(stats, history),
        views.connections(vip, heaviest, looking),
        views.network(stats, status),
      ];
  show(main, lost, real ? null : views.services(stats, vip.name), body);
  hang();
  fill(vip, real?.address);
}

function chartPlaces(): HTMLElement {
  const spans = [300, 900].map((s) => h("button", { type: "button", "data-act": `span-${s}`, "aria-pressed": String(s === spanS) }, `${s / 60} min`));
  return h(
    "section",
    { "data-key": "charts" },
    h("div", { class: "bar" }, h("h2", {}, "Over time"), h("div", { class: "choice", role: "group", "aria-label": "Time shown" }, spans)),
    h("div", { class: "charts" }, Object.keys(charts).map((name) => h("div", { "data-keep": true, "data-key": `chart-${name}`, "data-chart": name }))),
  );
}

/** Charts live in their places, which stay. */
function hang(): void {
  for (const [name, chart] of Object.entries(charts)) {
    const place = main.querySelector(`[data-chart="${name}"]`);
    if (place && chart.root.parentElement !== place) place.replaceChildren(chart.root);
  }
}

function fill(vip: Vip, only?: string): void {
  // Both clocks as they stand now: that of the day may have been set meanwhile.
  const offsetS = stats!.at.realtime_ns / 1e9 - stats!.at.monotonic_ns / 1e9;
  const nowS = stats!.at.realtime_ns / 1e9;
  const fromNs = stats!.at.monotonic_ns - spanS * 1e9;
  const places = vip.reals.map((real, place) => ({ real, place, steps: history.of(vip.name, real.address).filter((step) => step.end.monotonic_ns > fromNs) }));
  const chosen = only ? places.filter((of) => of.real.address === only) : places.length <= LINES_MAX ? places : [...places].sort((a, b) => (b.real.latency.p99_us ?? -1) - (a.real.latency.p99_us ?? -1)).slice(0, LINES_MAX);
  const ends = [...new Set(places.flatMap((of) => of.steps.map((step) => step.end.monotonic_ns)))].sort((a, b) => a - b);
  // A pause of the daemon is a gap and no line.
  const axis: number[] = [];
  for (const end of ends) {
    const before = axis.at(-1);
    if (before !== undefined && end - before > 3.5e9 * history.stepS) axis.push(before + history.stepS * 1e9);
    axis.push(end);
  }
  const times = axis.map((end) => end / 1e9 + offsetS);
  // No more of the past than is known, but a minute.
  const range: [number, number] = [Math.max(nowS - spanS, Math.min(times[0] ?? nowS, nowS - 60)), nowS];
  type Of<T> = (step: (typeof places)[0]["steps"][0]) => T;
  const lines = (value: Of<number | null>, quality?: Of<string>): LineData => ({
    kind: "lines",
    times,
    lines: chosen.map(({ real, place, steps }): Line => {
      const by = new Map(steps.map((step) => [step.end.monotonic_ns, step]));
      const each = <T>(of: Of<T>): (T | null)[] => axis.map((end) => (by.has(end) ? of(by.get(end)!) : null));
      return { name: real.address, place, values: each(value), qualities: quality && each(quality) };
    }),
  });
  const heat: HeatData = { kind: "heat", times, stepS: history.stepS, floors: history.bucketFloorsUs, cells: axis.map(() => []) };
  const shown = only ? chosen : places;
  for (const [index, end] of axis.entries()) {
    const sums = new Map<number, number>();
    for (const { steps } of shown) for (const [at, n] of steps.find((step) => step.end.monotonic_ns === end)?.buckets ?? []) sums.set(at, (sums.get(at) ?? 0) + n);
    heat.cells[index] = [...sums.entries()].sort((a, b) => a[0] - b[0]);
  }
  const spoken = (value: (of: (typeof places)[0]) => string): string => chosen.map((of) => `${of.real.address} ${value(of)}`).join(", ");
  const now = ({ latency: of }: Real, us: number | null): string => (us === null ? "none" : `${latency(us)}, graded ${of.quality}`);
  const quality = (step: { quality: string }): string => step.quality;
  charts.p99.update(lines((step) => step.p99_us, quality), range, spoken(({ real }) => now(real, real.latency.p99_us)));
  charts.p50.update(lines((step) => step.p50_us, quality), range, spoken(({ real }) => now(real, real.latency.p50_us)));
  charts.heat.update(heat, range, only ? "responses of this real" : "responses of all reals");
  charts.weight.update(lines((step) => step.weight), range, spoken(({ real }) => `${weight(real.effective_weight)} of ${weight(real.meant_weight)}`));
  charts.open.update(lines((step) => step.active), range, spoken(({ real }) => count(real.connections_active)));
  charts.asked.update(lines((step) => step.requests / history.stepS), range, spoken(({ real }) => `${count(history.rate(vip.name, real.address, (step) => step.requests, 10) ?? 0)} a second`));
}

function turn(to: number[]): void {
  parts = to.length ? to : [0];
  void look();
}

async function lookAtConnections(): Promise<void> {
  looking = true;
  draw();
  try {
    heaviest = await ask<Connections>(`v1/connections?count=${views.SENDERS_ASKED}&ms=1000`);
  } catch (error) {
    heaviest = error instanceof Refusal ? error.message : "the daemon does not answer";
  }
  looking = false;
  draw();
}

main.addEventListener("click", (event) => {
  const act = (event.target as Element).closest("[data-act]")?.getAttribute("data-act");
  if (act?.startsWith("span-")) spanS = Number(act.slice(5));
  else if (act === "all-moves") allMoves = !allMoves;
  else if (act === "connections") return void lookAtConnections();
  else if (act === "later" && stats) return turn([...parts, stats.part.from + stats.vips.length]);
  else if (act === "earlier") return turn(parts.slice(0, -1));
  else return;
  draw();
});

main.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("token") as HTMLInputElement | null;
  if (!field?.value.trim()) return;
  useToken(field.value.trim());
  field.value = "";
  void look();
});

// The real that is pointed at, or has the focus, stands out in the charts.
for (const kind of ["mouseover", "focusin"] as const) {
  document.addEventListener(kind, (event) => {
    const real = (event.target as Element).closest("[data-real]")?.getAttribute("data-real") ?? null;
    for (const chart of Object.values(charts)) chart.mark(real);
  });
}

document.addEventListener("keydown", (event) => {
  const { vip, real } = wanted();
  if (event.key === "Escape" && vip && real && !(event.target as Element).closest(".plot")) location.hash = views.path(vip);
});

window.addEventListener("hashchange", () => {
  [allMoves, heaviest, explanation] = [false, null, null];
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
  draw();
  void look();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) void look();
});

void look();
