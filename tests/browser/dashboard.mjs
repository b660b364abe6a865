// The dashboard in Chromium. Called by tests/dashboard.rs with the address, the folder of
// playwright-core, a folder for screenshots, the folder of the runs and their number. Prints what it measured.

import assert from "node:assert";
import { createRequire } from "node:module";
import fs from "node:fs";
import net from "node:net";
import path from "node:path";

const [, , address, library, pictures, runsFolder, count] = process.argv;
const { chromium } = createRequire(library + "/")("playwright-core");
const RUNS = Number(count);
// Measurements are repeated where other programs of this machine were in the way.
const ATTEMPTS = 4;
const target = new URL(address);

// Connections go through this, so that they can be cut.
const sockets = new Set();
let cursors = [];
let accepting = true;
const proxy = net.createServer(client => {
  if (!accepting) return client.destroy();
  const server = net.connect(Number(target.port), target.hostname);
  for (const [from, to] of [[client, server], [server, client]]) {
    sockets.add(from);
    from.on("error", () => to.destroy());
    from.on("close", () => { sockets.delete(from); to.destroy(); });
    from.on("data", bytes => {
      const cursor = from === client && /last-event-id: (\S+)/i.exec(bytes.toString("latin1"));
      if (cursor) cursors.push(cursor[1]);
      to.write(bytes);
    });
  }
});
await new Promise(done => proxy.listen(0, "127.0.0.1", done));
const entry = new URL(address);
entry.port = proxy.address().port;

// Scrolls a table for 150 frames, and longer until `changes` runs have changed, and says what the browser's
// trace has about that time: frames that were drawn per second, time of the processor on the page's main
// thread per frame, its longest task.
async function scroll(page, changes = 0) {
  await browser.startTracing(page, { categories: [
    "-*", "devtools.timeline", "disabled-by-default-devtools.timeline", "disabled-by-default-devtools.timeline.frame",
    "toplevel", "blink.user_timing"] });
  const seen = await page.evaluate(changes => new Promise(done => {
    const box = document.getElementById("table");
    const received = () => window.starling?.received.runs ?? 0;
    const before = received();
    let frames = 0, moved = 0, by = 160;
    const step = () => {
      const from = box.scrollTop;
      box.scrollTop += by;
      moved += Math.abs(box.scrollTop - from);
      if (box.scrollTop === from) by = -by;
      const changed = received() - before;
      if (++frames < 150 || (changed < changes && frames < 1800)) requestAnimationFrame(step);
      else { performance.mark("scroll-end"); done({ pixels: moved, changed }); }
    };
    requestAnimationFrame(() => { performance.mark("scroll-begin"); step(); });
  }), changes);
  const { traceEvents: events } = JSON.parse((await browser.stopTracing()).toString());
  const mark = name => events.find(event => event.name === name);
  const [from, to] = [mark("scroll-begin"), mark("scroll-end")];
  const within = events.filter(event => event.pid === from.pid && event.ts >= from.ts && event.ts < to.ts);
  const drawn = within.filter(event => event.name === "DrawFrame").length;
  const tasks = within.filter(event => event.tid === from.tid && event.ph === "X" && event.name === "RunTask");
  assert(drawn > 10 && tasks.length > 100, `the trace has ${drawn} frames and ${tasks.length} tasks`);
  const sum = (list, key) => list.reduce((total, event) => total + (event[key] ?? 0), 0);
  const round = value => Number(value.toFixed(2));
  return {
    ...seen,
    fps: round(drawn / (to.ts - from.ts) * 1e6),
    cpu_ms_per_frame: round(sum(tasks, "tdur") / drawn / 1e3),
    longest_task_ms: round(Math.max(...tasks.map(task => task.dur)) / 1e3),
  };
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const measured = {};
try {
  // Without the token, and with a wrong one.
  const stranger = await browser.newPage();
  for (const path of ["/", "/?token=wrong", "/api/runs"]) {
    const response = await stranger.goto(new URL(path, entry).href);
    assert.equal(response.status(), 401, path);
  }
  await stranger.close();

  const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
  const errors = [];
  page.on("pageerror", error => errors.push(error.stack));
  page.on("console", message => { if (message.type() === "error") errors.push(message.text()); });

  // All runs are there quickly.
  measured.load_ms = [];
  let began = 0;
  do {
    await page.goto("about:blank");
    began = performance.now();
    await page.goto(entry.href);
    await page.waitForFunction(n => window.starling?.runs.size === n && document.querySelectorAll(".row").length > 5, RUNS);
    measured.load_ms.push(Math.round(performance.now() - began));
  } while (measured.load_ms.at(-1) >= 2000 && measured.load_ms.length < ATTEMPTS);
  assert.equal(new URL(page.url()).search, "", "the token stays in the address");
  assert.equal(await page.evaluate(() => document.cookie), "", "a script can read the cookie");
  await page.waitForSelector(".legend .entry");
  measured.first_curves_ms = Math.round(performance.now() - began);
  assert.equal(await page.textContent("#count"), `${RUNS} runs`);
  const rows = await page.locator(".row").count();
  assert(rows < 60, `${rows} rows exist`);

  // Filter: text, state, settings.
  const left = async text => {
    await page.fill("#filter", text);
    return Number((await page.textContent("#count")).split(" ")[0]);
  };
  assert.equal(await left("env:Walker algo:sac"), 100);
  assert.equal(await left("env:Walker algo.learning_rate>5e-4"), 250);
  assert.equal(await left("state:running"), 1);
  assert.equal(await left("seed=3 -env:Walker"), 9);
  await page.fill("#filter", "steps>many");
  assert.match(await page.textContent("#filter-note"), /a number is needed/);

  // Compare: two settings, ten seeds each, as two curves that say what they are.
  await page.fill("#filter", "env:Walker algo:sac");
  await page.waitForFunction(() => document.querySelectorAll("#curves .legend .entry").length === 2);
  const legend = await page.locator(".legend .entry").allTextContents();
  assert(legend.every(text => /learning_rate=\S+ · mean of 50 runs/.test(text)), legend.join());
  assert.match(await page.textContent("#curves .note"), /band: ± one standard deviation/);
  await page.selectOption("select[name=by]", "iqm");
  await page.waitForFunction(() => /IQM of 50/.test(document.querySelector("#curves .legend").textContent));
  // Other axes: their names, their numbers, and how these are written.
  for (const [x, label, last, tick] of [
    ["time", "training time", 140, /^(\d+ s|\d+(:\d\d)? min)$/], ["episodes", "episodes", 600, /^\d+$/],
    ["steps", "environment steps", 100_000, /^\d+( k)?$/]]) {
    await page.selectOption("#curves select[name=x]", x);
    await page.waitForFunction(([label, last]) => {
      const { axes, data } = window.starling.curves.chartOf;
      return axes[0].label === label && Math.abs(data[0].at(-1) - last) < 1e-6;
    }, [label, last]);
    const ticks = await page.evaluate(() => window.starling.curves.chartOf.axes[0]._values);
    assert(ticks.length > 3 && ticks.every(text => tick.test(text)), `${x}: ${ticks}`);
    assert.equal(new Set(ticks).size, ticks.length, `${x}: ${ticks}`);
    assert.equal(await page.getAttribute("#curves .chart", "aria-label"), `return over ${label}`);
  }
  await page.locator("#curves input[name=smooth]").fill("0.8");
  await page.waitForFunction(() => /raw values/.test(document.querySelector("#curves .note").textContent));
  await page.screenshot({ path: pictures + "/runs-light.png" });
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForTimeout(300);
  await page.screenshot({ path: pictures + "/runs-dark.png" });
  await page.emulateMedia({ colorScheme: "light" });

  // Sort.
  await page.fill("#filter", "env:Walker algo:sac");
  for (const [order, sign] of [["descending", -1], ["ascending", 1]]) {
    await page.click("#head .return");
    await page.waitForFunction(([order, sign]) => {
      const rows = [...document.querySelectorAll(".row:not([hidden])")]
        .sort((a, b) => new DOMMatrix(a.style.transform).m42 - new DOMMatrix(b.style.transform).m42);
      const returns = rows.map(row => Number(row.querySelector(".return").textContent));
      return document.querySelector("#head .return").ariaSort === order && new Set(returns).size > 5
        && returns.every((value, i) => i === 0 || sign * (value - returns[i - 1]) >= 0);
    }, [order, sign]);
  }

  // Scrolling through all runs while a hundred of them change, measured by Chromium's trace.
  await page.fill("#filter", "");
  await page.waitForTimeout(500);
  const growing = fs.readdirSync(path.join(runsFolder, "Walker2d-v5/sac")).slice(0, 100)
    .map(name => path.join(runsFolder, "Walker2d-v5/sac", name, "progress.csv"));
  let row = 200;
  const writing = setInterval(() => {
    row++;
    for (const file of growing) fs.appendFileSync(file, `${row * 500},${row * 0.7},${row * 3},700,500\n`);
  }, 250);
  measured.scroll = [];
  // As tests/dashboard.rs judges it.
  const fluid = ({ fps, cpu_ms_per_frame: cpu }) => fps > 55 && cpu < 1000 / 60;
  do measured.scroll.push(await scroll(page, 100));
  while (!fluid(measured.scroll.at(-1)) && measured.scroll.length < ATTEMPTS);
  clearInterval(writing);
  assert(measured.scroll.every(one => one.pixels > 20_000 && one.changed >= 100), JSON.stringify(measured));

  // The run that is being made: its page changes by itself.
  const live = await page.evaluate(() => [...window.starling.runs.values()].find(run => run.name === "live").id);
  await page.evaluate(id => { location.hash = "#/run/" + id; }, live);
  await page.waitForSelector("#page-run .legend .entry");
  await page.waitForSelector(".gauges dd");
  const steps = () => page.evaluate(id => window.starling.runs.get(id).steps, live);
  const first = await steps();
  await page.waitForFunction(([id, from]) => window.starling.runs.get(id).steps > from, [live, first]);
  await page.waitForFunction(() => /progress env_steps/.test(document.querySelector(".log").textContent));
  assert.match(await page.textContent(".command code"), /starling train --config .*config\.yaml/);
  assert.equal(await page.textContent("select[name=other] option"), "the preset");
  const settings = await page.locator(".settings .differs td:first-child").allTextContents();
  assert(settings.includes("steps"), settings.join());

  // Where its time goes, who takes part, and what its process needs.
  await page.waitForFunction(() => /update/.test(document.querySelector(".process")?.textContent));
  const roles = await page.locator(".roles tr").allTextContents();
  assert(roles.some(text => /^learner/.test(text)) && roles.some(text => /^actor.*connected/.test(text)), roles.join("\n"));
  await page.waitForFunction(() => /resident memory/.test(document.querySelector("#page-run").textContent));

  // A checkpoint is written when it is asked for, and the run continues.
  const saved = () => page.locator(".checkpoints tr").count();
  const savedBefore = await saved();
  await page.click("#save");
  assert.match(await page.textContent("#question"), /The run continues/);
  await page.click("#yes");
  await page.waitForFunction(n => document.querySelectorAll(".checkpoints tr").length > n, savedBefore);
  const savedAt = await steps();
  await page.waitForFunction(([id, from]) => window.starling.runs.get(id).steps > from, [live, savedAt]);

  // The agent plays that checkpoint while somebody looks.
  await page.click("#watch");
  const shown = () => page.evaluate(() => Number(document.getElementById("agent").dataset.step ?? -1));
  await page.waitForFunction(() => Number(document.getElementById("agent").dataset.step) > 0, null, { timeout: 30_000 });
  const firstShown = await shown();
  await page.waitForFunction(n => Number(document.getElementById("agent").dataset.step) !== n, firstShown);
  const colours = await page.evaluate(() => {
    const canvas = document.getElementById("agent");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  });
  assert(colours > 3, `the picture has ${colours} colours`);
  assert.match(await page.textContent(".stage"), /checkpoint of step [\d,]+ · episode/);
  await page.setViewportSize({ width: 1280, height: 1010 });
  await page.evaluate(() => { document.getElementById("message").hidden = true; });
  await page.locator(".stage").evaluate(stage => stage.scrollIntoView());
  await page.screenshot({ path: pictures + "/agent-light.png" });
  await page.setViewportSize({ width: 1280, height: 860 });
  const players = () => fs.readdirSync("/proc").filter(name => /^\d+$/.test(name)).filter(name => {
    try { return /--stream/.test(fs.readFileSync(`/proc/${name}/cmdline`, "latin1").replaceAll("\0", " "))
      && fs.readFileSync(`/proc/${name}/cmdline`, "latin1").includes(runsFolder); } catch { return false; }
  }).length;
  assert.equal(players(), 1);
  // It ends when the page is left.
  await page.evaluate(() => { location.hash = "#/"; });
  for (let i = 0; players() > 0; i++) {
    assert(i < 600, "the process that plays is still there");
    await page.waitForTimeout(50);
  }
  await page.evaluate(id => { location.hash = "#/run/" + id; }, live);
  await page.waitForSelector("#page-run .legend .entry");

  // The connection is lost and comes back: only what is missing is sent.
  const counts = () => page.evaluate(() => ({ ...window.starling.received }));
  accepting = false;
  cursors = [];
  for (const socket of sockets) socket.destroy();
  await page.waitForFunction(() => document.getElementById("link").textContent.startsWith("connecting"));
  const lost = await counts();
  const lostAt = await steps();
  accepting = true;
  await page.waitForFunction(n => window.starling.received.connections > n, lost.connections, { timeout: 15_000 });
  await page.waitForFunction(([id, from]) => window.starling.runs.get(id).steps > from, [live, lostAt]);
  const back = await counts();
  assert(cursors.length > 0, "no cursor was sent");
  measured.runs_sent_after_reconnect = back.runs - lost.runs;
  assert(measured.runs_sent_after_reconnect < 20, JSON.stringify([lost, back]));
  // Also what was being requested when the connection was lost: the page was opened just before.
  await page.waitForSelector("#page-run .small figure canvas");
  await page.waitForSelector("#page-run .settings tr");
  // What was expected: requests failed while there was no connection.
  errors.splice(0, errors.length, ...errors.filter(text => !/ERR_|Failed to fetch|NetworkError/.test(text)));

  await page.screenshot({ path: pictures + "/run-light.png" });
  await page.emulateMedia({ colorScheme: "dark" });
  await page.screenshot({ path: pictures + "/run-dark.png", fullPage: true });
  await page.emulateMedia({ colorScheme: "light" });

  // Stop: not without confirmation.
  await page.click("#stop");
  await page.click("#no");
  assert.equal(await page.textContent("#page-run .state"), "running");
  await page.click("#stop");
  await page.click("#yes");
  await page.waitForFunction(() => document.querySelector("#page-run .state").textContent === "stopped");
  assert.equal(await page.locator("#stop").count(), 0);

  // A click on a curve goes to its run.
  await page.goto(new URL("/#/", entry).href);
  await page.fill("#filter", "env:Walker algo:sac seed=3 algo.learning_rate<5e-4");
  await page.waitForFunction(() => document.querySelectorAll("#curves .legend .entry").length === 1);
  const chart = await page.locator("#curves .u-over").boundingBox();
  const curve = await page.evaluate(() => {
    const line = document.querySelector("#curves canvas");
    const pixels = line.getContext("2d").getImageData(0, 0, line.width, line.height);
    const over = document.querySelector("#curves .u-over").getBoundingClientRect();
    const from = line.getBoundingClientRect();
    const x = Math.round((over.left - from.left + over.width / 2) * devicePixelRatio);
    for (let y = 0; y < line.height; y++) {
      const at = (y * line.width + x) * 4;
      // The first colour of the curves.
      if (pixels.data[at + 3] > 200 && pixels.data[at + 2] - pixels.data[at] > 80) return y / devicePixelRatio + from.top;
    }
    return null;
  });
  assert(curve !== null, "no curve is drawn");
  await page.mouse.move(chart.x + chart.width / 2, curve);
  await page.mouse.click(chart.x + chart.width / 2, curve);
  await page.waitForFunction(() => location.hash.startsWith("#/run/"));

  // The settings of that run beside those of another one, which may be any.
  await page.waitForSelector(".settings tr");
  const others = await page.locator("select[name=other] option:not([value=preset])").count();
  assert.equal(others, RUNS - 1);
  const [self, other] = await page.evaluate(() => {
    const one = window.starling.runs.get(location.hash.split("/")[2]);
    return [one, [...window.starling.runs.values()].find(run => run.env === one.env && run.algo === one.algo
      && run.seed === 4 && run.settings["algo.learning_rate"] === 1e-3)];
  });
  assert.equal(self.seed, 3);
  await page.selectOption("select[name=other]", other.id);
  const cells = row => row.locator("th, td").allTextContents();
  const lines = async () => Promise.all((await page.locator(".settings tr").all()).map(cells));
  const [titles, ...differences] = await lines();
  assert.deepEqual(titles.slice(0, 2), ["setting", "this run"]);
  assert.match(titles[2], /^Walker2d-v5 sac .*seed 4$/);
  assert.deepEqual(differences.sort(), [["algo.learning_rate", "0.0001", "0.001"], ["seed", "3", "4"]]);
  // Without the filter the equal ones are there too, and are not marked.
  await page.uncheck("input[name=only]");
  const all = await lines();
  assert(all.some(row => row.join() === "steps,100000,100000"), all.join("\n"));
  assert.equal(await page.locator(".settings .differs").count(), 2);

  // Queues: one that was made up, and one of the program.
  await page.evaluate(() => { location.hash = "#/queues"; });
  await page.waitForSelector(".queue");
  const queue = name => page.locator(".queue").filter({ has: page.locator("h2", { hasText: name }) });
  assert.match(await queue("sweep").textContent(), /1 finished.*1 interrupted.*2 waiting/s);
  const real = queue("tiny");
  assert.match(await real.textContent(), /not running.*2 finished/s);
  for (const seed of [1, 2]) {
    const trial = real.locator("tr").filter({ has: page.locator("td:nth-child(2)", { hasText: String(seed) }) });
    const [, , state, score] = await cells(trial);
    assert.equal(state, "finished");
    const id = (await trial.locator("a").getAttribute("href")).split("/").at(-1);
    const run = await page.evaluate(id => window.starling.runs.get(id), id);
    assert.deepEqual([run.env, run.seed, run.state], ["CartPole-v1", seed, "finished"]);
    assert(Math.abs(Number(score) - run.return) < 0.01 * run.return, `${score}, ${run.return}`);
  }
  // What happens in a queue is seen without a new request.
  fs.appendFileSync(path.join(runsFolder, "queues/sweep/state.jsonl"),
    JSON.stringify({ variant: 1, seed: 1, event: "finished", score: 7, seconds: 3 }) + "\n");
  await page.waitForFunction(() => /2 finished.*1 interrupted.*1 waiting/s.test(document.querySelector("#page-queues").textContent));

  assert.deepEqual(errors, []);
  console.log(JSON.stringify(measured));
} finally {
  await browser.close();
  proxy.close();
  for (const socket of sockets) socket.destroy();
}
