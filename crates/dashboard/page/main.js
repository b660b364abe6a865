// The page: which part is shown, and what happens when runs change.

import * as store from "./store.js";
import { compile } from "./filter.js";
import { Curves } from "./curves.js";
import { showQueues } from "./queues.js";
import { RunPage } from "./run.js";
import { RunTable } from "./table.js";

const at = id => document.getElementById(id);
const open = id => { location.hash = "#/run/" + id; };

// The token is not needed any more: the cookie takes its place.
history.replaceState(null, "", location.pathname + location.hash);

const table = new RunTable({ open, choose: () => updateCurves() });
const curves = new Curves(at("curves"), { open });
window.starling.curves = curves; // For tests.
const runPage = new RunPage(at("page-run"), { open, stop: askStop, checkpoint: askCheckpoint });
let fits = () => true;
let filtered = [];

function filter() {
  const note = at("filter-note");
  try {
    fits = compile(at("filter").value);
    note.textContent = "";
  } catch (error) {
    note.textContent = error.message;
  }
  updateTable();
  updateCurves();
}

function updateTable() {
  filtered = [...store.runs.values()].filter(fits);
  table.show(filtered);
  const all = store.runs.size;
  const runs = all === 1 ? "run" : "runs";
  at("count").textContent = filtered.length === all ? `${all} ${runs}` : `${filtered.length} of ${all} ${runs}`;
}

// Runs that are selected, or all that the filter leaves.
function updateCurves() {
  for (const id of table.chosen) if (!store.runs.has(id)) table.chosen.delete(id);
  at("clear").hidden = table.chosen.size === 0;
  const shown = table.chosen.size ? [...table.chosen] : table.list.map(run => run.id);
  curves.show(shown);
}

at("filter").addEventListener("input", filter);
at("clear").addEventListener("click", () => { table.chosen.clear(); table.schedule(); updateCurves(); });

// ---- pages

function route() {
  const [, page = "", id] = location.hash.split("/");
  const name = page === "run" ? "run" : page === "queues" ? "queues" : "runs";
  for (const one of ["runs", "run", "queues"]) at("page-" + one).hidden = one !== name;
  for (const link of document.querySelectorAll("nav a")) {
    link.toggleAttribute("aria-current", link.dataset.page === name);
  }
  scrollTo(0, 0);
  if (name === "run") runPage.show(id);
  else runPage.leave();
  if (name === "queues") showQueues(at("page-queues"));
  if (name === "runs") { updateTable(); updateCurves(); }
}
addEventListener("hashchange", route);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { curves.draw(); runPage.draw(); });

// ---- changes

let lastCurves = 0;
let planned = false;

// Curves are drawn at most once a second, and not while somebody scrolls through the table: drawing many
// takes longer than a frame.
function planCurves() {
  const due = Math.max(lastCurves + 1000, table.scrolled + 250) - Date.now();
  if (due > 0) { setTimeout(planCurves, due); return; }
  planned = false;
  lastCurves = Date.now();
  updateCurves();
}

store.onChange(changed => {
  at("link").textContent = store.connected ? "live" : "connecting …";
  at("link").dataset.state = store.connected ? "running" : "stopped";
  at("queue-count").textContent = store.queues.length || "";
  if (!at("page-runs").hidden && changed.size) {
    updateTable();
    if (!planned) {
      planned = true;
      planCurves();
    }
  }
  const incomplete = store.connected && !runPage.details;
  if (runPage.id && (changed.has(runPage.id) || incomplete)) runPage.update();
  if (!at("page-queues").hidden) showQueues(at("page-queues"));
});

// ---- stop and checkpoint

let confirmed = null;
function ask(question, yes, action, done) {
  at("question").textContent = question;
  at("yes").textContent = yes;
  confirmed = async () => {
    try {
      await action();
      say(done);
    } catch (error) {
      say(error.message);
    }
  };
  at("confirm").showModal();
}
at("no").addEventListener("click", () => at("confirm").close());
at("yes").addEventListener("click", () => { at("confirm").close(); confirmed(); });

const title = run => `${run.env} ${run.algo} ${run.name}, seed ${run.seed}`;

function askStop(run) {
  ask(`Stop ${title(run)}? It writes a checkpoint and ends; starling resume continues it.`, "Stop the run",
    () => store.stop(run.id), "The run was asked to stop. It ends after its current round.");
}

function askCheckpoint(run) {
  ask(`Write a checkpoint of ${title(run)} now? The run continues.`, "Write a checkpoint",
    () => store.checkpoint(run.id), "The run was asked for a checkpoint. It writes one after its current round.");
}

let hiding = null;
function say(text) {
  at("message").textContent = text;
  at("message").hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { at("message").hidden = true; }, 6000);
}

// ---- start

store.start().then(session => {
  at("folder").textContent = session.title;
  route();
  performance.mark("starling-loaded");
  return store.names();
}).then(names => curves.setNames(names.progress, names.eval))
  .catch(error => say(error.message));
curves.names.addEventListener("focus", () => {
  store.names().then(names => curves.setNames(names.progress, names.eval));
});
