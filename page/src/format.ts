// SPDX-License-Identifier: Apache-2.0
// Figures with their units. Three digits that matter, never more than is known.

const NARROW = "\u202f";

function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** A latency that is there. */
export function latency(us: number): string {
  if (us < 999.5) return `${us < 99.5 ? us.toFixed(us < 9.95 ? 1 : 0) : Math.round(us)}${NARROW}µs`;
  if (us < 999_500) return `${digits(us / 1e3)}${NARROW}ms`;
  return `${digits(us / 1e6)}${NARROW}s`;
}

/** The same at a tick: no more digits than it has. */
export function tick(us: number): string {
  return latency(us).replace(/\.?0+(?=\u202f)/, (zeros) => (zeros.startsWith(".") ? "" : zeros));
}

/** Events a second. */
export function rate(perSecond: number): string {
  if (perSecond === 0) return "0/s";
  return perSecond < 0.05 ? "< 0.1/s" : `${count(perSecond < 10 ? Math.round(perSecond * 10) / 10 : perSecond)}/s`;
}

/** A number of things. */
export function count(n: number): string {
  if (n < 10_000) return n < 10 && n % 1 ? n.toFixed(1) : Math.round(n).toLocaleString("en-US").replace(/,/g, NARROW);
  if (n < 1e6) return `${digits(n / 1e3)}${NARROW}k`;
  if (n < 1e9) return `${digits(n / 1e6)}${NARROW}M`;
  return `${digits(n / 1e9)}${NARROW}G`;
}

/** A weight, in the configuration's unit. */
export function weight(of: number): string {
  if (of === 0 || of >= 99.95) return String(Math.round(of));
  const text = of.toPrecision(of < 0.1 ? 1 : 3);
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

export function percent(share: number): string {
  const pct = share * 100;
  if (pct > 0 && pct < 0.95) return `< 1${NARROW}%`;
  return `${pct.toFixed(0)}${NARROW}%`;
}

/** A span, the largest units of it. */
export function span(s: number): string {
  if (s < 1) return `${s.toFixed(1)}${NARROW}s`;
  if (s < 100) return `${Math.round(s)}${NARROW}s`;
  if (s < 6000) return `${Math.round(s / 60)}${NARROW}min`;
  if (s < 172_800) return `${Math.round(s / 3600)}${NARROW}h`;
  return `${Math.round(s / 86_400)}${NARROW}d`;
}

/** Time of day here, and the date if it is not today's. */
export function clock(realtimeNs: number): string {
  const at = new Date(realtimeNs / 1e6);
  const time = at.toTimeString().slice(0, 8);
  if (at.toDateString() === new Date().toDateString()) return time;
  const two = (n: number): string => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** An address as it stands before a port. */
export function host(address: string): string {
  return address.includes(":") ? `[${address}]` : address;
}

export function endpoint(address: string, port: number): string {
  return port === 0 ? `${host(address)}, every port` : `${host(address)}:${port}`;
}
