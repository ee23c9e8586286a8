// SPDX-License-Identifier: Apache-2.0
// Looks at the page with Debian's Chromium and holds what it shows against what the API answers.
// The laboratory's scenario `page` starts it, says on standard input what state it has made,
// and reads a line of JSON for each.
//
//   node states.mjs URL DIRECTORY
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [url, pictures] = process.argv.slice(2);
const SIZES = [{ width: 1280, height: 900 }, { width: 380, height: 800 }];
const SCHEMES = ["light", "dark"];

await mkdir(pictures, { recursive: true });
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const context = await browser.newContext({ viewport: SIZES[0], colorScheme: "light", reducedMotion: "reduce" });
const page = await context.newPage();

/** What went wrong in the browser, but for a daemon that is gone. */
const faults = [];
let gone = false;
/** The last answers that the page itself has had. */
const answers = new Map();
page.on("console", (message) => {
  if (message.type() === "error" && !gone) faults.push(message.text());
});
page.on("pageerror", (error) => faults.push(String(error)));
page.on("request", (request) => {
  if (!request.url().startsWith(url)) faults.push(`asks ${request.url()}`);
});
page.on("response", async (response) => {
  const path = new URL(response.url()).pathname;
  if (path.startsWith("/v1/") && response.ok()) answers.set(path, await response.json().catch(() => null));
});
await page.addInitScript(() => {
  globalThis.shifts = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) globalThis.shifts.push({ at: entry.startTime, value: entry.value });
  }).observe({ type: "layout-shift", buffered: true });
});

/** A figure with its unit, as a number. */
function figure(text) {
  const found = text.replace(/\s/g, " ").match(/^([\d. ]*\d)\s*(µs|ms|s|k|M|G)?(?:\/s)?(?: |$)/);
  assert(found, `no figure in ${JSON.stringify(text)}`);
  const unit = { µs: 1, ms: 1e3, s: 1e6, k: 1e3, M: 1e6, G: 1e9 }[found[2]] ?? 1;
  return Number(found[1].replace(/ /g, "")) * unit;
}

function near(text, value, what) {
  const shown = figure(text);
  assert(Math.abs(shown - value) <= Math.max(0.006 * Math.abs(value), 0.5), `${what}: shown ${text}, the API says ${value}`);
}

/** When the page says that it has looked. */
function clock(stats) {
  return new Date(stats.at.realtime_ns / 1e6).toTimeString().slice(0, 8);
}

/** Waits for the next look, so that what is drawn is what was answered last. */
async function looked() {
  const before = answers.get("/v1/stats")?.at.monotonic_ns;
  for (let i = 0; i < 600; i++) {
    await page.waitForTimeout(100);
    const stats = answers.get("/v1/stats");
    if (!stats || stats.at.monotonic_ns === before) continue;
    await page.waitForTimeout(300);
    if ((await page.locator(".link").innerText()).includes(clock(stats))) return stats;
  }
  throw new Error("the page has not looked for a minute");
}

/** Rows of a table: a heading, and cells by their labels; and what the page says then of its last look. */
async function read(section) {
  return page.evaluate((key) => {
    const found = [...document.querySelectorAll(`[data-key="${key}"] tbody tr`)];
    const rows = found.map((row) => {
      const cells = { name: row.querySelector("th").innerText.trim() };
      for (const cell of row.querySelectorAll("td")) {
        const copy = cell.cloneNode(true);
        const small = copy.querySelector("small");
        if (small) cells[`${cell.dataset.label} why`] = small.textContent;
        small?.remove();
        cells[cell.dataset.label] = copy.textContent.trim();
      }
      return cells;
    });
    return { link: document.querySelector(".link").innerText, rows };
  }, section);
}

async function rows(section) {
  return (await read(section)).rows;
}

/** A look, and a table that was drawn of it: on a busy machine the next look may come in between. */
async function drawn(section) {
  for (let i = 0; i < 60; i++) {
    const stats = await looked();
    const { link, rows: shown } = await read(section);
    if (link.includes(clock(stats))) return { stats, shown };
  }
  throw new Error(`each look at ${section} came too late`);
}

/** What must come true: on a busy machine a real may be slow or down for a moment, and a move that was shown may have gone on. */
async function eventually(check) {
  for (let i = 0; ; i++) {
    try {
      return await check();
    } catch (error) {
      if (i === 30 || !(error instanceof assert.AssertionError)) throw error;
      await looked();
    }
  }
}

async function checkReals() {
  const { stats, shown } = await drawn("reals");
  const vip = stats.vips.find((of) => of.name === "web");
  assert.deepEqual(shown.map((row) => row.name), vip.reals.map((real) => real.address));
  for (const [i, real] of vip.reals.entries()) {
    const row = shown[i];
    for (const [label, us] of [["p50", real.latency.p50_us], ["p99", real.latency.p99_us]]) {
      if (us === null) assert.equal(row[label], "none", `${label} of ${real.address}`);
      else near(row[label], us, `${label} of ${real.address}`);
      if (us === null) assert(row[`${label} why`], "none, with why");
    }
    assert.equal(row.quality, real.latency.quality);
    assert.equal(row["quality why"].endsWith("low"), real.latency.low > 0, `low ones of ${real.address}: ${row["quality why"]}`);
    near(row.open, real.connections_active, `open of ${real.address}`);
    near(row.weight, real.effective_weight, `weight of ${real.address}`);
    const client = real.agent?.client_us ?? null;
    if (client === null) assert(row["clients wait"] === "none" && row["clients wait why"]);
    else near(row["clients wait"], client, `clients of ${real.address}`);
    const down = real.state === "down";
    assert.equal(row.state.includes("down"), down);
  }
  return shown;
}

/** What is shown of moves begins and ends as one of them each, and has its reason. */
async function checkMoves() {
  const moves = await rows("moves");
  const all = await (await fetch(`${url}v1/moves`)).json();
  const own = all.moves.filter((move) => move.vip === "web");
  for (const row of moves) {
    const [before, after] = row.weight.split(" → ").map(Number);
    const like = (shown, weight) => Math.abs(shown - weight) <= 0.006 * Math.max(weight, 1);
    const last = own.find((of) => of.real === row.real && of.reason_text === row.reason.replace(" (computed only)", "") && like(after, of.after));
    assert(last && own.some((of) => of.real === row.real && like(before, of.before)), JSON.stringify(row));
  }
  return own;
}

async function checkLists() {
  const { stats, shown: drops } = await drawn("drops");
  const dropped = stats.verdicts.filter((of) => of.action === "drop" && of.packets > 0);
  const shown = new Map(drops.map((row) => [row.name, row]));
  assert.deepEqual([...shown.keys()].sort(), dropped.map((of) => of.verdict).sort());
  for (const of of dropped) near(shown.get(of.verdict)["in all"], of.packets, of.verdict);
  const own = await eventually(checkMoves);
  if (own.length > 0) {
    await looked();
    await page.locator('[data-act="all-moves"]').click();
    const each = await rows("moves");
    // Since then there were more.
    assert(each.length >= own.length && each.length <= 1000, `${each.length} of ${own.length} moves`);
    await page.locator('[data-act="all-moves"]').click();
  }
  assert.equal((await rows("services")).length, stats.vips.length);
  return { drops: shown.size, moves: own.length };
}

/** Every chart has drawn something, in more colours than its axes. */
async function checkCharts() {
  const drawn = await page.locator("[data-chart] canvas").evaluateAll((found) =>
    found.map((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 250) colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
      return colours.size;
    }),
  );
  assert.equal(drawn.length, 6);
  for (const colours of drawn) assert(colours > 4, `a chart is empty: ${drawn}`);
}

async function findings() {
  return page.locator(".findings li").allInnerTexts();
}

/** What text has too little contrast with what is behind it. */
async function faint() {
  return page.evaluate(() => {
    const light = ([r, g, b]) => {
      const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
    const found = [];
    for (const element of document.querySelectorAll("main *, header *")) {
      if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) || !element.offsetParent) continue;
      let behind = element;
      while (behind && numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
      const [a, b] = [light(numbers(getComputedStyle(element).color)), light(numbers(getComputedStyle(behind ?? document.body).backgroundColor))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast < 4.5) found.push(`${element.tagName}.${element.className} ${element.textContent.slice(0, 30)}: ${contrast.toFixed(1)}`);
    }
    return found;
  });
}

async function picture(name) {
  // Nothing is pointed at.
  await page.mouse.move(1, 1);
  for (const colorScheme of SCHEMES) {
    for (const viewport of SIZES) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize(viewport);
      await page.evaluate(() => scrollTo(0, 0));
      await page.waitForTimeout(400);
      const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert(wide <= room, `${name} at ${viewport.width}: ${wide} px wide`);
      const cut = await page.locator(".reals").evaluateAll((found) => found.filter((table) => table.parentElement.scrollWidth > table.parentElement.clientWidth).length);
      assert.equal(cut, 0, `${name} at ${viewport.width}: the table of reals is cut`);
      const pale = await faint();
      assert.deepEqual(pale, [], `${name}, ${colorScheme}: too faint`);
      await page.screenshot({ path: `${pictures}/${name}-${viewport.width}-${colorScheme}.png`, fullPage: true });
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize(SIZES[0]);
}

/** Two looks that bring figures alone: another row or finding takes its place. */
async function shifted() {
  const said = async () => (await page.locator("th, td small, .findings li").allInnerTexts()).join("\n").replace(/[\d.]+/g, "");
  for (let i = 0; i < 30; i++) {
    const before = await said();
    await page.evaluate(() => (globalThis.shifts.length = 0));
    await looked();
    await looked();
    const sum = (await page.evaluate(() => globalThis.shifts)).reduce((all, of) => all + of.value, 0);
    if (sum < 0.02) return sum;
    assert.notEqual(await said(), before, `what is shown moves by itself: ${sum}`);
  }
  throw new Error("in each of thirty looks something came or went");
}

/** Two looks of which screen readers say nothing: figures are no news, what has another state is. */
async function quiet() {
  const shown = async () => (await findings()).join("\n").replace(/[\d.]+/g, "");
  const regions = page.locator("[role=status]");
  for (let i = 0; i < 30; i++) {
    const before = await shown();
    assert.deepEqual(await regions.count(), 2);
    await regions.evaluateAll((found) => {
      globalThis.heard = [];
      globalThis.ear?.disconnect();
      globalThis.ear = new MutationObserver((changes) => globalThis.heard.push(...changes.map((of) => of.target.textContent)));
      for (const region of found) globalThis.ear.observe(region, { childList: true, characterData: true, subtree: true });
    });
    await looked();
    await looked();
    const heard = await page.evaluate(() => globalThis.heard);
    if (heard.length === 0) return;
    assert.notEqual(await shown(), before, `screen readers are told at each look: ${heard}`);
  }
  throw new Error("in each of thirty looks something came or went");
}

/** What the page shows of answers that are not the daemon's. */
async function otherwise(glob, change, check) {
  await page.route(glob, async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: change(await answer.json()) });
  });
  await eventually(check);
  // One may be under way.
  await page.unrouteAll({ behavior: "wait" });
}

/** The stats with other values of the VIP `web`, and of its first real. */
function ofWeb(stats, vip, first = {}) {
  const change = (of) => ({ ...of, ...vip, reals: of.reals.map((real, i) => (i === 0 ? { ...real, ...first } : real)) });
  return { ...stats, vips: stats.vips.map((of) => (of.name === "web" ? change(of) : of)) };
}

/** Slow is what has less than it is meant to have, and a server that tells its weight multiplies that. */
async function checkMeant() {
  const health = { state: "up", since_monotonic_ns: 0, reason: "it answered", succeeded: 1, failed: 0 };
  const latency = { mean_us: null, samples: 0, low: 0, bounds: 0, quality: "none", server_us: null, path_us: null, path_samples: 0, p50_us: null, p90_us: null, p99_us: null };
  for (const [meant, inForce, reason, state, why] of [
    [300, 150, "above", "slow", "configured: 100"],
    [30, 30, "above", "up", "configured: 100"],
    [0, 0, "off", "up", "its server asks for none"],
  ]) {
    const real = { state: "active", health, latency, weight: 100, meant_weight: meant, effective_weight: inForce, wanted_weight: inForce, reason, slow_start_s: undefined };
    await otherwise("**/v1/stats?*", (stats) => ofWeb(stats, {}, real), async () => {
      const [row] = await rows("reals");
      assert.equal(row.weight, `${inForce} of ${meant}`);
      assert.equal(row["weight why"], why);
      assert(row.state.endsWith(state), `${row.state} with ${row.weight}`);
      const spoken = await page.locator('[data-chart="weight"] .plot').getAttribute("aria-label");
      assert(spoken.includes(`${row.name} ${row.weight}`), spoken);
      const said = (await findings()).find((text) => text.includes(`${row.name} is slow`));
      assert.equal(said?.includes("it has 50\u202f% of its weight"), state === "slow" ? true : undefined, said);
    });
  }
  // How much a server has told since then is no part of what was in force.
  const told = (step) => ({ ...step, configured: 100, weight: 300 });
  const change = (timeline) => ({ ...timeline, reals: timeline.reals.map((of) => ({ ...of, steps: of.steps.map(told) })) });
  await otherwise("**/timeline?*", change, async () => {
    await page.locator('[data-chart="weight"] .plot').focus();
    await page.keyboard.press("Escape");
    await page.keyboard.press("ArrowLeft");
    assert.equal(await page.locator('[data-chart="weight"] .readout span').first().innerText(), "300");
    await page.keyboard.press("Escape");
  });
}

/** Without an outer source all packets of a family are dropped. */
async function checkNextHop() {
  const hop = { family: "ipv6", state: "no_source", gateway: "fe80::1", mac: null, other_routes: 0, since_monotonic_ns: 0 };
  await otherwise("**/v1/stats?*", (stats) => ({ ...stats, next_hop: [hop] }), async () => {
    const bad = await page.locator(".findings li.bad").allInnerTexts();
    assert(bad.some((text) => text.includes("no source address for packets to ipv6 reals") && text.includes("source6")), bad.join("; "));
    assert.deepEqual(await page.locator('[data-key="network"] .state.bad').count(), 1);
  });
}

/** The VIP's own connections are shown, however many others send more. */
async function checkConnections() {
  const many = (vip, n) => Array.from({ length: n }, (_, i) => ({ client: `192.0.2.1:${i + 1}`, vip, real: "10.20.0.10", rate_pps: 1000 - i, packets: i, closed: false }));
  const section = page.locator('[data-key="connections"]');
  const found = async (heaviest) => {
    let asked;
    await page.route("**/v1/connections?*", (route) => {
      asked = new URL(route.request().url()).searchParams.get("count");
      return route.fulfill({ json: { open: heaviest.length, refused: 0, heaviest } });
    });
    await section.locator("button").click();
    await section.locator(".scroll, .empty").first().waitFor();
    const shown = (await section.locator(".empty").allInnerTexts())[0] ?? (await rows("connections")).map((row) => Number(row["in all"]));
    assert.equal(asked, "1000");
    await page.unroute("**/v1/connections?*");
    // Another VIP's page begins without.
    await page.evaluate(() => (location.hash = "#/idle"));
    await page.locator("h1", { hasText: "idle" }).waitFor();
    await page.evaluate(() => (location.hash = "#/web"));
    await page.locator("h1", { hasText: "web" }).waitFor();
    return shown;
  };
  const heaviest = Array.from({ length: 20 }, (_, i) => i);
  for (const [address, port, own, strangers] of [
    ["10.0.0.1", 80, "10.0.0.1:80", ["10.0.0.1:443", "10.0.0.10:80", "10.0.0.1:8080"]],
    ["10.0.0.1", 0, "10.0.0.1:443", ["10.0.0.10:443"]],
    ["2001:db8::1", 80, "[2001:db8::1]:80", ["[2001:db8::1]:443", "[2001:db8::10]:80"]],
    ["2001:db8::1", 0, "[2001:db8::1]:443", ["[2001:db8::10]:443"]],
  ]) {
    await otherwise("**/v1/stats?*", (stats) => ofWeb(stats, { address, port }), async () => {
      const others = strangers.flatMap((vip) => many(vip, 300));
      assert.deepEqual(await found([...others, ...many(own, 30)]), heaviest, `of ${address}, port ${port}`);
      assert.match(String(await found(others)), /no connection of this VIP has a slot/);
      assert.match(String(await found(many(strangers[0], 1000))), /none of the 1000 that send most/);
    });
  }
}

/** Sections before the daemon goes: a note above them comes and goes, and they are the same. */
let kept;

async function checkKept() {
  assert.deepEqual(await kept.evaluate((sections) => sections.filter((of) => !of.isConnected).map((of) => of.dataset.key)), []);
}

/** A move that was not today has its date. */
async function checkDates() {
  const then = answers.get("/v1/stats").at.realtime_ns - 86_400e9;
  const at = { monotonic_ns: 1, realtime_ns: then };
  const move = { at, vip: "web", real: "10.20.0.10", before: 1, after: 0.5, latency_us: null, reason: "high", reason_text: "slow", observed: false };
  await page.route("**/v1/moves?*", (route) => route.fulfill({ json: { moves: [move] } }));
  // What the page has already is newer.
  await page.reload();
  await page.locator('[data-key="moves"] tbody tr').waitFor();
  const day = new Date(then / 1e6);
  const date = [day.getFullYear(), day.getMonth() + 1, day.getDate()].map((n) => String(n).padStart(2, "0")).join("-");
  assert.match((await rows("moves"))[0].name, new RegExp(`^${date} \\d\\d:\\d\\d:\\d\\d$`));
  assert.match(await page.locator(".link").innerText(), /live, \d\d:\d\d:\d\d$/);
  await page.unroute("**/v1/moves?*");
  await page.reload();
  await looked();
}

/** Requests are as the steps since the daemon is back have them: before these there was none. */
async function checkRates() {
  for (let i = 0; i < 30; i++) {
    const { stats, shown } = await drawn("reals");
    const had = answers.get("/v1/vips/web/timeline").reals;
    const whole = await (await fetch(`${url}v1/vips/web/timeline`)).json();
    if (answers.get("/v1/stats") !== stats || !had.every((of) => of.steps.length > 0)) continue;
    for (const [place, { steps }] of whole.reals.entries()) {
      const to = had[place].steps.at(-1).end.monotonic_ns;
      const recent = steps.filter(({ end }) => end.monotonic_ns <= to && end.monotonic_ns > to - 10e9);
      const ns = to - recent[0].end.monotonic_ns + whole.step_ns;
      const rate = recent.reduce((sum, step) => sum + step.requests, 0) / (ns / 1e9);
      const { name, requests } = shown[place];
      assert(Math.abs(figure(requests) - rate) <= 0.25 * rate + 0.1, `requests of ${name}: shown ${requests}, its ${recent.length} steps say ${rate}/s`);
    }
    return;
  }
  throw new Error("no step has ended since the daemon is back");
}

/** The real's page by keys alone, and back. */
async function byKeys(address) {
  const target = page.locator(`[data-real="${address}"] a`);
  await target.focus();
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: address }).waitFor();
  await eventually(async () => {
    await looked();
    const last = answers.get(`/v1/vips/web/reals/${address}/decisions`);
    const shown = await rows("decisions");
    assert(shown.length > 0);
    assert.equal(shown.length, last.decisions.length);
    assert.equal(shown[0].reason, last.decisions.at(-1).reason_text);
  });
}

/** Of very many VIPs a part is listed, and that of the address bar is asked for. */
async function ofMany() {
  await page.route("**/v1/stats?*", async (route) => {
    const answer = await route.fetch();
    const stats = await answer.json();
    const from = Number(new URL(route.request().url()).searchParams.get("from"));
    const vips = stats.vips.filter((vip) => (vip.name === "idle") === from > 0);
    await route.fulfill({ response: answer, json: { ...stats, vips, part: { from, total: from ? from + vips.length : 10_000, not_ready: ["idle"] } } });
  });
  await page.locator(".parts").waitFor();
  await looked();
  assert.equal(await page.locator("h1").innerText(), "idle");
  assert(!(await rows("services")).some((row) => row.name === "idle"));
  assert.match(await page.locator(".parts").innerText(), /^1 to \d+ of 10000 Later Not ready of all: idle/);
  await page.locator('[data-act="later"]').click();
  await page.locator('[data-act="earlier"]').waitFor();
  assert.deepEqual((await rows("services")).map((row) => row.name), ["idle"]);
  await page.locator('[data-act="earlier"]').click();
  await page.locator('[data-act="later"]').waitFor();
  await page.unrouteAll({ behavior: "wait" });
  await page.locator(".parts").waitFor({ state: "detached" });
}

const STATES = {
  async well() {
    await page.goto(url);
    await page.locator('[data-key="reals"] tbody tr').first().waitFor();
    await looked();
    await looked();
    const moved = await shifted();
    await quiet();
    const reals = await checkReals();
    const lists = await checkLists();
    await checkCharts();
    const said = await eventually(async () => {
      const found = await findings();
      assert(found[0].includes("All 4 reals take connections"), found[0]);
      return found;
    });
    await picture("well");
    await page.goto(`${url}#/idle`);
    await page.locator("h1", { hasText: "idle" }).waitFor();
    await looked();
    for (const row of await rows("reals")) assert(row.p99 === "none" && row["p99 why"], "nobody asks the idle VIP");
    await picture("idle");
    await ofMany();
    await page.goto(`${url}#/web`);
    await page.locator("h1", { hasText: "web" }).waitFor();
    await checkMeant();
    await checkNextHop();
    await checkConnections();
    await checkDates();
    return { reals, lists, said, moved };
  },
  async slow() {
    const reals = await checkReals();
    const said = await eventually(async () => {
      const found = await findings();
      assert(found.some((text) => text.includes("10.20.0.13 is slow")), found.join("; "));
      assert.match(await page.locator("main [role=status]").innerText(), /10\.20\.0\.13 is slow(;|$)/);
      const given = (await rows("moves")).find((row) => row.real === "10.20.0.13");
      // How much depends on the others, which a busy machine makes slow, too.
      const [before, after] = (given?.weight ?? "").split(" → ").map(Number);
      assert(after < before && given.reason.startsWith("gave weight"), `the slow one gives weight: ${JSON.stringify(given)}`);
      return found;
    });
    const lists = await checkLists();
    await checkCharts();
    await picture("slow");
    await byKeys("10.20.0.13");
    await picture("real");
    await page.keyboard.press("Escape");
    await page.locator("h1", { hasText: "web" }).waitFor();
    return { reals, lists, said };
  },
  async down() {
    const reals = await checkReals();
    const said = await eventually(async () => {
      const found = await findings();
      assert(found[0].includes("10.20.0.11 has been down for"), found.join("; "));
      return found;
    });
    for (const row of await rows("services")) assert.notEqual(row["highest p99 why"], "graded none", row.name);
    await picture("down");
    return { reals, said };
  },
  /** Before the daemon goes. */
  async leaves() {
    gone = true;
    kept = await page.evaluateHandle(() => [...document.querySelectorAll("main [data-key]")]);
    await page.locator('[data-act="connections"]').focus();
    return {};
  },
  async lost() {
    await page.locator(".link.bad").waitFor({ timeout: 60_000 });
    assert((await page.locator(".link").innerText()).includes("disconnected since"));
    assert.equal(await page.locator("header [role=status]").innerText(), "disconnected");
    await page.locator(".lost-note").waitFor();
    await checkKept();
    assert(await page.locator('[data-act="connections"]').evaluate((button) => button === document.activeElement), "the note takes the focus away");
    const known = await rows("reals");
    assert.equal(known.length, 4, "what was known stays");
    await picture("lost");
    await page.evaluate(() => (location.hash = "#/idle"));
    await page.locator("h1", { hasText: "idle" }).waitFor();
    for (const row of await rows("reals")) {
      assert(known.some((of) => of.name === row.name), `${row.name} is a server of both`);
      assert.equal(row.requests, "none", `${row.name} has the requests of another VIP`);
    }
    await page.evaluate(() => (location.hash = "#/web"));
    await page.locator("h1", { hasText: "web" }).waitFor();
    assert.deepEqual((await rows("reals")).map((row) => row.requests), known.map((row) => row.requests), "what was known stays");
    // Longer than the time that rates are over.
    await page.waitForTimeout(Math.max(0, answers.get("/v1/stats").at.realtime_ns / 1e6 + 12_000 - Date.now()));
    return {};
  },
  async back() {
    await page.locator(".link.good").waitFor({ timeout: 60_000 });
    await page.locator(".lost-note").waitFor({ state: "detached" });
    await checkKept();
    gone = false;
    await checkRates();
    await checkReals();
    return {};
  },
};

for await (const state of createInterface({ input: process.stdin })) {
  let seen;
  try {
    seen = { ok: true, state, ...(await STATES[state]()) };
    assert.deepEqual(faults, []);
  } catch (error) {
    await page.screenshot({ path: `${pictures}/failed-${state}.png`, fullPage: true }).catch(() => {});
    seen = { ok: false, state, error: String(error.message ?? error) };
  }
  console.log(JSON.stringify(seen));
}
await browser.close();
