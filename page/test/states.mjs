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
  await page.unroute("**/v1/stats?*");
  await page.locator(".parts").waitFor({ state: "detached" });
}

const STATES = {
  async well() {
    await page.goto(url);
    await page.locator('[data-key="reals"] tbody tr').first().waitFor();
    await looked();
    await looked();
    const moved = await shifted();
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
    return { reals, lists, said, moved };
  },
  async slow() {
    const reals = await checkReals();
    const said = await eventually(async () => {
      const found = await findings();
      assert(found.some((text) => text.includes("10.20.0.13 is slow")), found.join("; "));
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
    return {};
  },
  async lost() {
    await page.locator(".link.bad").waitFor({ timeout: 60_000 });
    assert((await page.locator(".link").innerText()).includes("disconnected since"));
    assert.equal((await rows("reals")).length, 4, "what was known stays");
    await picture("lost");
    return {};
  },
  async back() {
    await page.locator(".link.good").waitFor({ timeout: 60_000 });
    gone = false;
    await looked();
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
