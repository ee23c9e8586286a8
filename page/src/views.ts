// SPDX-License-Identifier: Apache-2.0
// From what the API answers to what is shown. A figure that is not known is "none", with why.

import type { Connections, Explanation, Move, Real, Stats, Status, Step, Vip } from "./api";
import type { History } from "./history";
import { swatch } from "./charts";
import { type Child, h } from "./dom";
import { clock, count, endpoint, host, latency, percent, rate, span, weight } from "./format";
import { type Finding, findings, hopFault, mark, ofDaemon, recentDrops, share } from "./judge";

/** Rates are over so many seconds. */
const RATE_S = 10;
/** Moves that are shown at first: so many, and of so large a part of the weight. */
const MOVES_SHOWN = 12;
const LARGE = 0.05;
/** What a move of one real means for the others. */
const FOLLOWS = new Set(["received", "gave", "regressed"]);
/** Moves of a real for one reason, no further apart than this, are one. */
const ONE_MOVE_NS = 3e9;
/** Names of services that are not ready and not listed. */
const NAMES_MAX = 20;
/** Connections to ask for: the daemon names no more, and those of other VIPs are among them. */
export const SENDERS_ASKED = 1000;
const SENDERS_SHOWN = 20;

export function none(why: string): HTMLElement {
  return h("span", { class: "none" }, "none", h("small", {}, why));
}

export function path(vip: string, real?: string): string {
  return `#/${encodeURIComponent(vip)}${real ? `/${encodeURIComponent(real)}` : ""}`;
}

function figure(label: string, value: Child, note?: string): HTMLElement {
  return h("div", { class: "figure" }, h("dt", {}, label), h("dd", {}, value, note && h("small", {}, note)));
}

/** What screen readers say by themselves, when it changes: it has no figure that each look changes. */
function announced(what: string): HTMLElement {
  return h("span", { class: "unseen", role: "status" }, what);
}

function sayings(found: Finding[]): Child[] {
  const signs = { good: "●", off: "○", warn: "▲", bad: "✕" };
  return [
    announced(found.map((of) => of.gist).join("; ")),
    h(
      "ul",
      { class: "findings" },
      found.map((of) => h("li", { class: of.level }, h("b", { "aria-hidden": "true" }, signs[of.level]), h("span", {}, of.text))),
    ),
  ];
}

/** The head: which daemon it is, and whether it answers. */
export function head(status: Status | null, link: { alive: boolean; word: string; note?: string }): Child[] {
  return [
    h("a", { class: "brand", href: "#/" }, h("img", { src: "icon.svg", alt: "", width: 24, height: 24 }), "Causeway"),
    status && h("span", { class: "where" }, `${location.hostname || "socket"} · ${status.interface} · ${status.mode} XDP · ${status.version}`),
    h("span", { class: `link ${link.alive ? "good" : "bad"}` }, h("b", { "aria-hidden": "true" }, link.alive ? "●" : "✕"), link.word + (link.note ?? "")),
    announced(link.word),
  ];
}

/** One row for each VIP, where there are several. */
export function services(stats: Stats, shown: string): HTMLElement | null {
  const { from, total, not_ready } = stats.part;
  if (total < 2) return null;
  const rows = stats.vips.map((vip) => {
    // One that has gone silent has a percentile from before, which nothing grades.
    const measured = vip.reals.filter((real) => real.latency.quality !== "none");
    const worst = measured.reduce<Real | null>((a, b) => ((b.latency.p99_us ?? -1) > (a?.latency.p99_us ?? -1) ? b : a), null);
    const worstP99 = worst?.latency.p99_us ?? null;
    const levels = vip.reals.map((real) => mark(vip, real).level);
    const [level, sign, word] = !vip.ready
      ? ["bad", "✕", "not ready"]
      : levels.includes("bad")
        ? ["bad", "✕", "a real is down"]
        : levels.includes("warn")
          ? ["warn", "▲", "a real is slow"]
          : levels.includes("good")
            ? ["good", "●", "well"]
            : ["off", "○", "not probed"];
    return h(
      "tr",
      { class: vip.name === shown ? "shown" : undefined },
      h("th", { scope: "row" }, h("a", { href: path(vip.name), "aria-current": vip.name === shown ? "page" : undefined }, vip.name)),
      cell("state", h("span", { class: `state ${level}` }, h("b", { "aria-hidden": "true" }, sign!), word!)),
      cell("address", `${endpoint(vip.address, vip.port)}/${vip.protocol}`, "text"),
      cell("reals up", `${vip.reals_up} of ${vip.reals.length}`),
      cell("highest p99", worstP99 === null ? none("no response") : h("span", {}, latency(worstP99), h("small", {}, `graded ${worst!.latency.quality}`))),
      cell("open", count(vip.reals.reduce((sum, real) => sum + real.connections_active, 0))),
    );
  });
  return h(
    "section",
    { class: "services", "data-key": "services" },
    h("h2", {}, "Services"),
    h("div", { class: "scroll" }, h("table", { class: "cards" }, headings("<service", "<state", "<address", "reals up", "highest p99", "open"), h("tbody", {}, rows))),
    rows.length < total &&
      h(
        "p",
        { class: "parts" },
        `${from + 1} to ${from + rows.length} of ${total} `,
        from > 0 && h("button", { type: "button", "data-act": "earlier" }, "Earlier"),
        from + rows.length < total && h("button", { type: "button", "data-act": "later" }, "Later"),
        not_ready.length ? " Not ready of all: " : " All are ready.",
        not_ready.slice(0, NAMES_MAX).map((name) => [h("a", { href: path(name) }, name), " "]),
        not_ready.length > NAMES_MAX && `and ${not_ready.length - NAMES_MAX} more`,
      ),
  );
}

/** Column heads; those of text begin with `<`, and stand to the left. */
function headings(...names: string[]): HTMLElement {
  const head = (name: string): HTMLElement => h("th", { scope: "col", class: name.startsWith("<") ? "text" : undefined }, name.replace("<", ""));
  return h("thead", {}, h("tr", {}, names.map(head)));
}

function cell(label: string, value: Child, kind = ""): HTMLElement {
  return h("td", { "data-label": label, class: kind || undefined }, value);
}

function qualityOf(real: Real): HTMLElement {
  const { quality, samples, low, bounds } = real.latency;
  const of = samples + bounds > 0 ? `${count(samples)} in 10 s` : "no samples";
  const part = low > 0 ? `, ${percent(low / samples)} low` : "";
  return h("span", { class: `quality ${quality}` }, quality || "none", h("small", {}, of + part));
}

/** What of its latencies says little, and what counts all the same. */
function doubts(vip: Vip, real: Real): string | undefined {
  const { low, bounds } = real.latency;
  const counts = vip.takes_low ? "control counts them, for want of better ones" : "in these figures, not in control";
  const found = [low > 0 && `${count(low)} are graded low, all of their connection off alike: ${counts}`, bounds > 0 && `${count(bounds)} more are upper bounds, in no figure`];
  return found.filter(Boolean).join("; ") || undefined;
}

function quantile(real: Real, us: number | null, at: "p50" | "p99"): Child {
  if (us === null) return none(real.connections_active > 0 || real.requests > 0 ? "no response for 20 s" : "never asked");
  const few = at === "p99" && real.latency.samples < 100;
  return few ? h("span", {}, latency(us), h("small", {}, "the slowest of few")) : latency(us);
}

function parts(real: Real): Child {
  const { server_us, path_us, path_samples, samples } = real.latency;
  if (server_us === null || path_us === null) return none(samples > 0 ? "no handshake was seen" : "no samples");
  const part = path_samples < 0.95 * samples ? `of ${percent(path_samples / samples)}` : "";
  return h("span", {}, `${latency(server_us)} + ${latency(path_us)}`, part && h("small", {}, part));
}

/** The clients' own view, from the real's agent. */
function clients(real: Real, stats: Stats): Child {
  const heard = Object.values(stats.agent_reports).some((n) => n > 0);
  const agent = real.agent;
  if (!agent) return none(heard ? "its agent does not report" : "no agent reports here");
  if (agent.client_us !== null) return h("span", {}, latency(agent.client_us), h("small", {}, `${count(agent.client_transactions ?? 0)} in 1 s`));
  return none(agent.client_transactions === null ? "its agent does not measure this VIP" : "no client was served for 1 s");
}

function weights(real: Real): Child {
  const part = share(real);
  if (real.state !== "active") return h("span", {}, `${weight(real.effective_weight)} of ${real.weight}`, h("small", {}, "takes nothing new"));
  if (part === null) return h("span", {}, `${weight(real.effective_weight)} of 0`, h("small", {}, real.weight === 0 ? "configured as 0" : "its server asks for none"));
  const observed = Math.abs(real.wanted_weight - real.effective_weight) > 0.001 * real.meant_weight;
  const notes = [
    Math.abs(real.meant_weight - real.weight) > 0.001 * real.weight && `configured: ${real.weight}`,
    observed && `wanted: ${weight(real.wanted_weight)}`,
    !observed && real.slow_start_s !== undefined && `whole in ${span(real.slow_start_s)}`,
  ].filter(Boolean);
  return h(
    "span",
    { class: "weight" },
    h("progress", { value: Math.min(part, 1), max: 1, "aria-label": `${percent(part)} of the weight that it is meant to have` }),
    `${weight(real.effective_weight)} of ${weight(real.meant_weight)}`,
    notes.length > 0 && h("small", {}, notes.join(", ")),
  );
}

export function reals(vip: Vip, stats: Stats, history: History): HTMLElement {
  const rows = vip.reals.map((real, place) => {
    const { level, word, sign } = mark(vip, real);
    const recent = (what: (step: Step) => number): number | null => history.rate(vip.name, real.address, what, RATE_S);
    const [opened, asked] = [recent((step) => step.opened), recent((step) => step.requests)];
    return h(
      "tr",
      { class: level, "data-real": real.address },
      h("th", { scope: "row" }, swatch(place), h("a", { href: path(vip.name, real.address) }, real.address)),
      cell("state", h("span", { class: `state ${level}` }, h("b", { "aria-hidden": "true" }, sign), word)),
      cell("p50", quantile(real, real.latency.p50_us, "p50")),
      cell("p99", quantile(real, real.latency.p99_us, "p99"), "strong"),
      cell("quality", qualityOf(real)),
      cell("server + path", parts(real)),
      cell("clients wait", clients(real, stats)),
      cell("weight", weights(real)),
      cell("open", count(real.connections_active)),
      cell("new", opened === null ? none("2 s more") : rate(opened)),
      cell("requests", asked === null ? none("2 s more") : rate(asked)),
    );
  });
  return h(
    "section",
    { "data-key": "reals" },
    h("h2", {}, "Reals"),
    h(
      "div",
      { class: "scroll" },
      h("table", { class: "cards reals" }, headings("<real", "<state", "p50", "p99", "quality", "server + path", "clients wait", "weight", "open", "new", "requests"), h("tbody", {}, rows)),
    ),
  );
}

/** Moves in a row, as one. */
interface Run extends Move {
  count: number;
}

/** By how large a factor a weight has changed; what is left of one that is all but gone counts little. */
function size(run: Run): number {
  const least = 0.01 * Math.max(run.before, run.after);
  return Math.abs(Math.log((run.after + least) / (run.before + least)));
}

/** The moves that tell most, newest first: what follows from others is left out. */
function told(own: Move[]): Run[] {
  const runs: Run[] = [];
  const open = new Map<string, Run>();
  for (const move of own) {
    const run = open.get(move.real);
    if (run && run.reason === move.reason && move.at.monotonic_ns - run.at.monotonic_ns <= ONE_MOVE_NS) {
      Object.assign(run, move, { before: run.before, count: run.count + 1 });
      continue;
    }
    const begun = { ...move, count: 1 };
    open.set(move.real, begun);
    runs.push(begun);
  }
  const large = runs.filter((run) => !FOLLOWS.has(run.reason) && size(run) >= LARGE);
  const largest = new Set([...large].sort((a, b) => size(b) - size(a)).slice(0, MOVES_SHOWN));
  return large.filter((run) => largest.has(run)).reverse();
}

export function moves(list: Move[], wanted: { vip: string; real?: string }, all: boolean, controlled: boolean): HTMLElement {
  const own = list.filter((move) => move.vip === wanted.vip && (!wanted.real || move.real === wanted.real));
  const shown = all ? own.map((move) => ({ ...move, count: 1 })).reverse() : told(own);
  const rows = shown.map((move) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("time", {}, clock(move.at.realtime_ns))),
      cell("real", move.real, "text"),
      cell("weight", h("span", {}, `${weight(move.before)} → ${weight(move.after)}`, move.count > 1 && h("small", {}, `in ${move.count} moves`))),
      cell("latency", move.latency_us === null ? none("no estimate") : latency(move.latency_us)),
      cell("reason", move.reason_text + (move.observed ? " (computed only)" : ""), "text wide"),
    ),
  );
  const still = controlled ? "none: no weight has moved since the daemon’s start" : "none: control is off, weights are as configured";
  return h(
    "section",
    { "data-key": "moves" },
    h("h2", {}, "Moves of weight"),
    rows.length
      ? h("div", { class: "scroll" }, h("table", { class: "cards moves" }, headings("<at", "<real", "weight", "latency", "<reason"), h("tbody", {}, rows)))
      : h("p", { class: "empty" }, own.length ? "none but small ones, and what follows from others" : still),
    own.length > 0 && h("button", { type: "button", "data-act": "all-moves", "aria-pressed": String(all) }, all ? "Show the largest" : `Show all ${own.length}, one by one`),
  );
}

export function drops(stats: Stats, history: History): HTMLElement {
  const recent = recentDrops(history, stats.at.monotonic_ns);
  const known = history.drops.length > 0;
  const names = stats.verdicts.filter((of) => of.action === "drop" && of.packets > 0);
  names.sort((a, b) => (recent.get(b.verdict) ?? 0) - (recent.get(a.verdict) ?? 0) || b.packets - a.packets);
  const rows = names.map((of) => {
    const late = recent.get(of.verdict) ?? 0;
    return h(
      "tr",
      { class: late > 0 ? "warn" : undefined },
      h("th", { scope: "row" }, h("code", {}, of.verdict)),
      cell("last minute", known ? count(late) : none("2 s more")),
      cell("in all", count(of.packets)),
      cell("what it is", of.meaning, "text wide"),
    );
  });
  return h(
    "section",
    { "data-key": "drops" },
    h("h2", {}, "Dropped packets"),
    rows.length
      ? h("div", { class: "scroll" }, h("table", { class: "cards drops" }, headings("<name", "last minute", "in all", "<what it is"), h("tbody", {}, rows)))
      : h("p", { class: "empty" }, "none: nothing was dropped since the data plane was loaded"),
  );
}

export function network(stats: Stats, status: Status): HTMLElement {
  const hops = stats.next_hop.map((hop) => {
    const bad = hopFault(hop, status, stats) !== null;
    return figure(
      `next hop, ${hop.family === "ipv6" ? "IPv6" : "IPv4"}`,
      h("span", { class: `state ${bad ? "bad" : "good"}` }, h("b", { "aria-hidden": "true" }, bad ? "✕" : "●"), hop.state),
      [hop.gateway, hop.mac, hop.other_routes > 0 && `${hop.other_routes} reals have another route`].filter(Boolean).join(" · ") || "no gateway is looked for",
    );
  });
  const table = stats.flow_table;
  const reports = Object.entries(stats.agent_reports).filter(([, n]) => n > 0);
  return h(
    "section",
    { "data-key": "network" },
    h("h2", {}, "The balancer"),
    h(
      "dl",
      { class: "figures" },
      hops.length ? hops : figure("next hop", none("no real is sent to by its IP address")),
      figure("flow table", table.slots ? percent(table.flows / table.slots) : none("it has no slots"), `${count(table.flows)} flows in ${count(table.slots)} slots`),
      figure("agents’ reports", reports.length ? reports.map(([word, n]) => `${count(n)} ${word}`).join(", ") : none("no agent reports here")),
      figure("daemon", `since ${clock(status.started.realtime_ns)}`, `pid ${status.pid}${status.took_over ? ", took over a running data plane" : ""}`),
    ),
  );
}

export function overview(vip: Vip, stats: Stats, status: Status, history: History): Child[] {
  return [
    h(
      "section",
      { class: "title", "data-key": "title" },
      h("h1", {}, vip.name),
      h(
        "p",
        { class: "sub" },
        `${endpoint(vip.address, vip.port)}/${vip.protocol} · scheduler ${vip.scheduler} · control ${vip.control}${vip.control === "off" ? "" : ` by ${vip.latency} latency`} · ${vip.forwarding}${vip.cookie.mode === "none" ? "" : ` · cookies ${vip.cookie.mode}`}`,
      ),
      sayings([...findings(vip, stats), ...ofDaemon(status, stats, history)]),
    ),
    reals(vip, stats, history),
  ];
}

/** One real: why it has its weight. */
export function one(vip: Vip, real: Real, place: number, stats: Stats, of: Explanation | null): Child[] {
  const { level, word, sign } = mark(vip, real);
  const l = real.latency;
  const health = real.health;
  return [
    h(
      "section",
      { class: "title", "data-key": "title" },
      h("p", { class: "crumbs" }, h("a", { href: path(vip.name), "data-act": "up" }, `← ${vip.name}`)),
      h("h1", {}, swatch(place), real.address),
      h("p", { class: "sub" }, h("span", { class: `state ${level}` }, h("b", { "aria-hidden": "true" }, sign), word), of ? ` · ${of.state}` : ""),
    ),
    h(
      "section",
      { "data-key": "figures" },
      h("h2", {}, "Now"),
      h(
        "dl",
        { class: "figures" },
        figure("p50", quantile(real, l.p50_us, "p50")),
        figure("p90", quantile(real, l.p90_us, "p50")),
        figure("p99", quantile(real, l.p99_us, "p99")),
        figure("quality", qualityOf(real), doubts(vip, real)),
        figure("server + path", parts(real)),
        figure("clients wait", clients(real, stats)),
        figure("server’s CPU", real.agent?.cpu != null ? percent(real.agent.cpu) : none("no agent reports its load"), real.agent?.in_flight != null ? `${count(real.agent.in_flight)} requests in flight` : undefined),
        figure("weight", weights(real)),
        figure("open connections", count(real.connections_active), `${count(real.connections_opened)} opened in all`),
        figure(
          "probes",
          health ? health.state : none("this VIP has no health check"),
          health ? `${health.reason}; ${count(health.succeeded)} succeeded, ${count(health.failed)} failed` : undefined,
        ),
      ),
    ),
    decisions(vip, of),
  ];
}

function decisions(vip: Vip, of: Explanation | null): HTMLElement {
  if (vip.control === "off") return h("section", { "data-key": "decisions" }, h("h2", {}, "Decisions"), h("p", { class: "empty" }, "none: control is off, the weight is as configured"));
  const rows = [...(of?.decisions ?? [])].reverse().map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("time", {}, clock(one.last.realtime_ns))),
      cell("for", one.intervals > 1 ? span((one.last.monotonic_ns - one.first.monotonic_ns) / 1e9) : "once"),
      cell("weight", Math.abs(one.before - one.after) < 1e-9 ? weight(one.after) : `${weight(one.before)} → ${weight(one.after)}`),
      cell("latency", one.latency_us === null ? none("no estimate") : h("span", {}, latency(one.latency_us), h("small", {}, one.error_pct === null ? one.latency_kind : `${one.latency_kind}, ± ${one.error_pct.toFixed(0)}\u202f%`))),
      cell("lowest", one.lowest_us === null ? none("no estimate") : latency(one.lowest_us)),
      cell("reason", one.reason_text + (one.observed ? " (computed only)" : ""), "text wide"),
    ),
  );
  return h(
    "section",
    { "data-key": "decisions" },
    h("h2", {}, `Decisions${of?.law ? ` of ${of.law}` : ""}`),
    rows.length ? h("div", { class: "scroll" }, h("table", { class: "cards" }, headings("<until", "for", "weight", "latency", "lowest", "<reason"), h("tbody", {}, rows))) : h("p", { class: "empty" }, "none: no interval has ended yet"),
  );
}

/** Who sends most, where connections have slots. */
export function connections(vip: Vip, found: Connections | string | null, busy: boolean): HTMLElement {
  const target = endpoint(vip.address, vip.port);
  const isOwn = (at: string): boolean => (vip.port === 0 ? at.slice(0, at.lastIndexOf(":")) === host(vip.address) : at === target);
  const own = typeof found === "object" && found ? found.heaviest.filter((of) => isOwn(of.vip)).slice(0, SENDERS_SHOWN) : [];
  return h(
    "section",
    { "data-key": "connections" },
    h("h2", {}, "One connection"),
    h(
      "p",
      { class: "lead" },
      "Where a client’s packets go, and why: ",
      h("code", {}, `causeway trace CLIENT:PORT ${target}`),
      ". What became of those that come: ",
      h("code", {}, "causeway trace --live"),
      ". Then read its real above: a connection waits as its real’s clients do.",
    ),
    h("button", { type: "button", "data-act": "connections", disabled: busy }, busy ? "Looking for a second …" : "Who sends most?"),
    typeof found === "string" && h("p", { class: "empty" }, `none: ${found}`),
    typeof found === "object" && found && own.length === 0 && h("p", { class: "empty" }, found.heaviest.length < SENDERS_ASKED ? "none: no connection of this VIP has a slot" : `none: none of the ${SENDERS_ASKED} that send most is of this VIP`),
    own.length > 0 &&
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "cards" },
          headings("<client", "<real", "packets", "in all"),
          h("tbody", {}, own.map((of) => h("tr", {}, h("th", { scope: "row" }, of.client), cell("real", of.real || none("gone"), "text"), cell("packets", rate(of.rate_pps)), cell("in all", count(of.packets))))),
        ),
      ),
  );
}

/** Asks for a token; `why` is what the daemon said of the last one. */
export function lock(why: string): HTMLElement {
  return h(
    "form",
    { class: "lock", "data-key": "lock" },
    h("label", { for: "token" }, "Token"),
    h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-note" }),
    h("button", { type: "submit" }, "Show"),
    h("p", { id: "token-note", class: "sub", role: why ? "alert" : undefined }, why ? `The daemon says: ${why}.` : "One of `causeway token`; viewer is enough. This tab keeps it until it is closed."),
  );
}
