// SPDX-License-Identifier: Apache-2.0
// Bundles the page into crates/balancer/page, which the daemon has in its binary.
import { createHash } from "node:crypto";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = fileURLToPath(new URL("../crates/balancer/page/", import.meta.url));

const { outputFiles } = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.ts" },
  outdir: "out",
  bundle: true,
  minify: true,
  write: false,
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: "/* SPDX-License-Identifier: Apache-2.0. With uPlot (MIT, (c) Leon Sorokin). Built from page/ by `make gen`. */" },
});
await mkdir(out, { recursive: true });
for (const file of outputFiles) await writeFile(out + file.path.split("/").pop(), file.contents);
for (const name of ["index.html", "icon.svg"]) await writeFile(out + name, await readFile(`${here}src/${name}`));

// What it was built from, for scripts/page: one line a file, as sha256sum prints it.
const sources = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"];
sources.push(...(await readdir(`${here}src`)).map((name) => `src/${name}`));
const sum = async (root, name) => `${createHash("sha256").update(await readFile(root + name)).digest("hex")}  ${name}\n`;
const sums = await Promise.all(sources.sort().map((name) => sum(here, name)));
const built = await Promise.all(["icon.svg", "index.html", "page.css", "page.js"].map((name) => sum(out, name)));
await writeFile(`${out}SHA256SUMS`, built.join(""));
await writeFile(`${out}SOURCES`, sums.join(""));
