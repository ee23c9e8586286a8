// SPDX-License-Identifier: Apache-2.0
// The answers of the daemon's API, as far as the page shows them (docs/reference/api.md).

export interface Moment {
  monotonic_ns: number;
  realtime_ns: number;
}

export interface Status {
  version: string;
  interface: string;
  mode: string;
  took_over: boolean;
  pid: number;
  started: Moment;
  config_file: string;
  last_reload_error: string | null;
  last_good: boolean;
  unfinished: string | null;
  state_error: string | null;
  data_plane_error: string | null;
  held_vips: { text: string }[];
}

export interface Latency {
  mean_us: number | null;
  samples: number;
  low: number;
  bounds: number;
  quality: string;
  server_us: number | null;
  path_us: number | null;
  path_samples: number;
  p50_us: number | null;
  p90_us: number | null;
  p99_us: number | null;
}

export interface AgentReport {
  cpu: number | null;
  in_flight: number | null;
  client_us: number | null;
  client_transactions: number | null;
  client_age_s: number | null;
}

export interface Real {
  address: string;
  state: string;
  health: { state: string; since_monotonic_ns: number; reason: string; succeeded: number; failed: number } | null;
  weight: number;
  /** As configured, times what its server tells, and as much of it as slow start gives yet. */
  meant_weight: number;
  effective_weight: number;
  wanted_weight: number;
  reason: string;
  reason_text: string;
  connections_opened: number;
  connections_active: number;
  requests: number;
  latency: Latency;
  slow_start_s?: number;
  agent?: AgentReport;
}

export interface Vip {
  name: string;
  address: string;
  port: number;
  protocol: string;
  scheduler: string;
  forwarding: string;
  control: string;
  latency: string;
  latency_fallbacks: number;
  takes_low: boolean;
  reals_up: number;
  min_healthy: number;
  ready: boolean;
  announced: boolean;
  cookie: { mode: string };
  reals: Real[];
}

export interface Verdict {
  verdict: string;
  action: string;
  meaning: string;
  packets: number;
}

export interface NextHop {
  family: string;
  state: string;
  gateway: string | null;
  mac: string | null;
  other_routes: number;
  since_monotonic_ns: number;
}

export interface Stats {
  at: Moment;
  verdicts: Verdict[];
  flow_table: { slots: number; flows: number };
  agent_reports: Record<string, number>;
  next_hop: NextHop[];
  /** Which VIPs these are of all; there may be ten thousand. */
  part: { from: number; total: number; not_ready: string[] };
  vips: Vip[];
}

export interface Step {
  end: Moment;
  p50_us: number | null;
  p99_us: number | null;
  mean_us: number | null;
  samples: number;
  quality: string;
  buckets: [number, number][];
  requests: number;
  opened: number;
  active: number;
  weight: number;
  state: string;
}

export interface Timeline {
  at: Moment;
  step_ns: number;
  bucket_floors_us: number[];
  reals: { real: string; steps: Step[] }[];
}

export interface DropStep {
  end: Moment;
  packets: Record<string, number>;
}

export interface Move {
  at: Moment;
  vip: string;
  real: string;
  before: number;
  after: number;
  latency_us: number | null;
  reason: string;
  reason_text: string;
  observed: boolean;
}

export interface Decision {
  first: Moment;
  last: Moment;
  intervals: number;
  law: string;
  before: number;
  after: number;
  latency_us: number | null;
  latency_kind: string;
  lowest_us: number | null;
  samples: number;
  error_pct: number | null;
  reason: string;
  reason_text: string;
  observed: boolean;
}

export interface Explanation {
  law: string | null;
  state: string;
  latency: string;
  report_age_s: number | null;
  decisions: Decision[];
}

export interface Connections {
  open: number;
  refused: number;
  heaviest: { client: string; vip: string; real: string; rate_pps: number; packets: number; closed: boolean }[];
}

/** A refusal of the daemon, with its sentence. */
export class Refusal extends Error {}

/** The daemon does not know who asks. */
export class Locked extends Refusal {}

/** Kept while the tab is open; no other page, and no later visit, has it. */
const TOKEN = "token";

export function useToken(token: string): void {
  sessionStorage.setItem(TOKEN, token);
}

/** One GET; a daemon that does not answer in time is gone. */
export async function ask<T>(path: string): Promise<T> {
  const signal = AbortSignal.timeout(8000);
  const token = sessionStorage.getItem(TOKEN);
  const headers: HeadersInit = token ? { authorization: `Bearer ${token}` } : {};
  const get = (): Promise<Response> => fetch(path, { signal, headers, cache: "no-store" });
  // The daemon ends connections after a minute: a request that met the end is asked again.
  const answer = await get().catch(get);
  const body: unknown = await answer.json();
  if (!answer.ok) {
    const sentence = (body as { error?: string }).error ?? `HTTP ${answer.status}`;
    if (answer.status !== 401 && answer.status !== 429) throw new Refusal(sentence);
    // Asked again with it, it would soon be refused unseen.
    sessionStorage.removeItem(TOKEN);
    throw new Locked(token ? sentence : "");
  }
  return body as T;
}
