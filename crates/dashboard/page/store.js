// All that the page knows: runs, queues and the columns of those that are shown. Nothing is fetched
// twice: events bring changes after a cursor, columns come from the first missing row on.

export const runs = new Map();
export let queues = [];
export let connected = false;

const listeners = new Set();
export function onChange(listener) { listeners.add(listener); }
function tell(changed) { for (const listener of listeners) listener(changed); }

// For tests: what was received.
export const received = { events: 0, runs: 0, rows: 0, connections: 0 };
window.starling = { received, runs };

let token = null;
let source = null;

export async function start() {
  const session = await json("/api/session");
  token = session.token;
  const all = await json("/api/runs");
  take(all);
  connect(all.cursor);
  return session;
}

async function json(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

function take(news) {
  const changed = new Set();
  if (news.all) {
    const there = new Set(news.runs.map(run => run.id));
    for (const id of runs.keys()) if (!there.has(id)) { runs.delete(id); changed.add(id); }
    tables.progress.clear();
    tables.eval.clear();
  }
  for (const id of news.gone) { runs.delete(id); changed.add(id); }
  for (const run of news.runs) {
    const known = runs.get(run.id);
    if (known) Object.assign(known, run); else runs.set(run.id, run);
    changed.add(run.id);
  }
  received.runs += news.runs.length;
  if (news.queues) queues = news.queues;
  tell(changed);
}

function connect(cursor) {
  source = new EventSource("/api/events?after=" + encodeURIComponent(cursor));
  source.onopen = () => { received.connections++; setConnected(true); };
  source.onmessage = event => { received.events++; cursor = event.lastEventId; take(JSON.parse(event.data)); };
  source.onerror = () => {
    setConnected(false);
    // The browser connects again by itself, with its last cursor, unless the answer was an error.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => connect(cursor), 2000);
  };
}

function setConnected(value) {
  connected = value;
  tell(new Set());
}

// ---- columns

const tables = { progress: new Map(), eval: new Map() };

class Growing {
  constructor() { this.values = new Float64Array(64); this.length = 0; }
  add(more) {
    if (this.length + more.length > this.values.length) {
      const larger = new Float64Array(Math.max(this.length + more.length, this.values.length * 2));
      larger.set(this.values.subarray(0, this.length));
      this.values = larger;
    }
    this.values.set(more, this.length);
    this.length += more.length;
  }
  view() { return this.values.subarray(0, this.length); }
}

const MOST = 200;

// Columns of runs, up to date: a map from ids to {name: Float64Array}.
export async function columns(ids, names, table = "progress") {
  const cache = tables[table];
  const wanted = new Map();
  for (const id of ids) {
    const run = runs.get(id);
    if (!run || !run[table][1]) continue;
    let known = cache.get(id);
    if (!known || known.generation !== run[table][0]) {
      known = { generation: run[table][0], columns: new Map() };
      cache.set(id, known);
    }
    const missing = names.filter(name => known.columns.get(name)?.size !== run[table][1]);
    if (!missing.length) continue;
    // Columns that have the same rows are asked for together.
    for (const name of missing) {
      const from = known.columns.get(name)?.rows ?? 0;
      const item = `${id}.${known.generation}.${from}`;
      if (!wanted.has(item)) wanted.set(item, []);
      wanted.get(item).push(name);
    }
  }
  const batches = new Map();
  for (const [item, missing] of wanted) {
    const key = missing.join("\n");
    if (!batches.has(key)) batches.set(key, []);
    batches.get(key).push(item);
  }
  const loads = [];
  for (const [key, items] of batches) {
    for (let i = 0; i < items.length; i += MOST) {
      loads.push(load(table, key, items.slice(i, i + MOST)));
    }
  }
  await Promise.all(loads);
  const result = new Map();
  for (const id of ids) {
    const known = cache.get(id);
    if (!known) continue;
    const found = {};
    for (const name of names) found[name] = known.columns.get(name)?.numbers.view() ?? new Float64Array();
    result.set(id, found);
  }
  return result;
}

async function load(table, key, items) {
  const sizes = new Map(items.map(item => {
    const id = item.split(".")[0];
    return [id, runs.get(id)?.[table][1]];
  }));
  const query = new URLSearchParams({ runs: items.join(","), names: key, eval: table === "eval" });
  const response = await fetch("/api/columns?" + query);
  if (!response.ok) return;
  const buffer = await response.arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const parts = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const names = key.split("\n");
  let at = 4 + length;
  for (const part of parts) {
    const known = tables[table].get(part.id);
    names.forEach((name, i) => {
      const count = part.lengths[i];
      const values = new Float64Array(buffer, at, count);
      at += count * 8;
      if (!known) return;
      received.rows += count;
      let column = known.columns.get(name);
      if (!column || part.from === 0) {
        column = { numbers: new Growing(), rows: 0 };
        known.columns.set(name, column);
      }
      // Another answer may have brought these rows already.
      if (column.rows !== part.from) return;
      column.numbers.add(values);
      column.rows = part.from + part.rows;
      column.size = sizes.get(part.id);
    });
    if (known) known.generation = part.generation;
  }
}

export function names() { return json("/api/names"); }
export function details(id) { return json(`/api/runs/${id}`); }
export function log(id, from) { return json(`/api/runs/${id}/log?from=${from}`); }

export function live(id) { return json(`/api/runs/${id}/live`); }
export function checkpoints(id) { return json(`/api/runs/${id}/checkpoints`); }

// Requests that change something.
async function post(address, signal) {
  const response = await fetch(address, { method: "POST", headers: { "x-starling-token": token }, signal });
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({ error: response.statusText }));
  throw new Error(answer.error);
}

export function stop(id) { return post(`/api/runs/${id}/stop`); }
export function checkpoint(id) { return post(`/api/runs/${id}/checkpoint`); }

// Pictures of the agent: descriptions and PNGs, each with its length before it. Ends with the signal.
export async function* pictures(id, signal) {
  const reader = (await post(`/api/runs/${id}/play`, signal)).body.getReader();
  let bytes = new Uint8Array();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const longer = new Uint8Array(bytes.length + value.length);
    longer.set(bytes);
    longer.set(value, bytes.length);
    bytes = longer;
    while (bytes.length >= 8) {
      const head = new DataView(bytes.buffer, bytes.byteOffset);
      const text = 8 + head.getUint32(0, true);
      const end = text + head.getUint32(4, true);
      if (bytes.length < end) break;
      const about = JSON.parse(new TextDecoder().decode(bytes.subarray(8, text)));
      const picture = end > text ? new Blob([bytes.subarray(text, end)], { type: "image/png" }) : null;
      bytes = bytes.slice(end);
      yield { about, picture };
    }
  }
}
