// Learning curves: single runs, or runs that differ only in their seeds as one curve with a band.

import * as store from "./store.js";
import { element, number, duration } from "./format.js";

const COLOURS = ["#3b7dd8", "#d9603b", "#2f9e6e", "#9b59c9", "#c9a227", "#d14a8b", "#3aa6b9", "#7f8c3a",
  "#8a6d5a", "#6573c3"];
const AXES = {
  steps: "env_steps",
  time: "Diagnostics/CumTime (s)",
  episodes: "Diagnostics/CumCompletedTrajs",
};
const LABELS = { steps: "environment steps", time: "training time", episodes: "episodes" };
// More curves than this cannot be told apart, and are not drawn. The page says so.
const MOST_CURVES = 100;
const POINTS = 400;

const RETURNS = ["GameScoreAverage", "ReturnAverage", "charts/episodic_return"];

export class Curves {
  // `open` is called with a run when its curve is clicked. Without `grouping` each run is a curve. A small
  // chart has no place for the name of its x axis.
  constructor(place, { open, grouping = true, y = "return", small = false }) {
    this.open = open;
    this.small = small;
    this.ids = [];
    this.x = "steps";
    this.y = y;
    this.by = grouping ? "mean" : "run";
    this.smooth = 0;
    this.log = false;
    this.known = new Map();
    this.place = place;
    const select = (label, options, key) => {
      const list = element("select", {
        name: key, onchange: () => { this[key] = list.value; this.draw(); },
      });
      for (const [value, text] of options) list.append(element("option", { value }, text));
      list.value = this[key];
      return element("label", {}, label + " ", list);
    };
    this.names = element("select", { name: "y", onchange: () => { this.y = this.names.value; this.draw(); } });
    this.setNames([]);
    const slider = element("input", {
      type: "range", name: "smooth", min: 0, max: 0.99, step: 0.01, value: 0,
      oninput: () => { this.smooth = Number(slider.value); this.draw(); },
    });
    const scale = element("input", {
      type: "checkbox", name: "log", onchange: () => { this.log = scale.checked; this.draw(); },
    });
    this.controls = element("div", { class: "bar controls" },
      element("label", {}, "y ", this.names),
      select("x", [["steps", "steps"], ["time", "time"], ["episodes", "episodes"]], "x"),
      grouping ? select("seeds", [["mean", "mean of seeds"], ["iqm", "IQM of seeds"], ["run", "single runs"]], "by") : null,
      element("label", {}, "smoothing ", slider),
      element("label", {}, scale, " log y"));
    this.note = element("p", { class: "note" });
    this.chart = element("div", { class: "chart", role: "img" });
    this.legend = element("div", { class: "legend" });
    place.append(this.controls, this.note, this.chart, this.legend);
    new ResizeObserver(() => this.fit()).observe(this.chart);
  }

  // The columns that can be chosen.
  setNames(progress, evaluation = []) {
    const groups = [["", ["return"]], ["training", progress], ["evaluation", evaluation.map(name => "eval: " + name)]];
    this.names.replaceChildren();
    for (const [title, list] of groups) {
      const into = title ? element("optgroup", { label: title }) : this.names;
      for (const name of list) into.append(element("option", { value: name }, name));
      if (title && list.length) this.names.append(into);
    }
    this.names.value = this.y;
    if (this.names.value !== this.y) {
      this.names.append(element("option", { value: this.y }, this.y));
      this.names.value = this.y;
    }
  }

  show(ids) {
    this.ids = ids;
    this.draw();
  }

  // One drawing at a time; the last wish counts.
  async draw() {
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    try {
      await this.load();
    } finally {
      this.busy = false;
    }
    if (this.again) { this.again = false; this.draw(); }
  }

  async load() {
    // What is wished may change while data comes.
    const { x, by } = this;
    const table = this.y.startsWith("eval: ") ? "eval" : "progress";
    const y = this.y.replace(/^eval: /, "");
    const wanted = this.ids.filter(id => store.runs.has(id));
    const groups = group(wanted.map(id => store.runs.get(id)), by);
    const shown = groups.slice(0, MOST_CURVES);
    const columns = y === "return" ? RETURNS : [y];
    // A curve whose runs have not changed is not computed again.
    for (const one of shown) {
      const files = one.runs.map(run => run.id + run[table].join(":"));
      one.version = [x, y, table, by, ...files].join();
    }
    const changed = shown.filter(one => !this.known.has(one.version));
    const ids = changed.flatMap(one => one.runs.map(run => run.id));
    const numbers = await store.columns(ids, [AXES[x], ...columns], table);
    const known = new Map();
    const curves = [];
    for (const one of shown) {
      let computed = this.known.get(one.version);
      if (!computed) {
        const lines = [];
        for (const run of one.runs) {
          const found = numbers.get(run.id);
          const values = found && columns.map(name => found[name]).find(has);
          if (values) lines.push({ run, ...clean(found[AXES[x]], values) });
        }
        computed = compute(lines.filter(line => line.x.length), by);
      }
      known.set(one.version, computed);
      if (computed.lines.length) curves.push({ ...one, ...computed });
    }
    this.known = known;
    const hidden = groups.length - shown.length;
    this.note.textContent = hidden > 0
      ? `${shown.length} of ${groups.length} curves are drawn: filter or select runs to see the others`
      : curves.length ? this.explain(curves) : "no values yet";
    this.plot(curves);
  }

  explain(curves) {
    const parts = [];
    if (curves.some(curve => curve.lines.length > 1)) {
      parts.push(this.by === "iqm"
        ? "interquartile mean over runs that differ only in the seed; band: from the 25 % to the 75 % quantile of the runs"
        : "mean over runs that differ only in the seed; band: ± one standard deviation of the runs");
    }
    const older = curves.reduce((sum, curve) => sum + (curve.older ?? 0), 0);
    if (older) parts.push(`${older} older ${older === 1 ? "run" : "runs"} with the same settings and seed left out`);
    if (this.smooth > 0) parts.push("thin: raw values, thick: exponentially smoothed");
    return parts.join(". ");
  }

  plot(curves) {
    const tables = [];
    const series = [{ label: this.x }];
    const bands = [];
    this.targets = [null];
    this.legendRows = [];
    curves.forEach((curve, i) => {
      const colour = COLOURS[i % COLOURS.length];
      const { xs, middle, below, above } = curve;
      const columns = [xs];
      const add = (values, one) => {
        columns.push(values);
        series.push(one);
        this.targets.push(curve);
      };
      if (above) {
        const edge = { stroke: "transparent", points: { show: false } };
        add(above, { ...edge, label: "above" });
        add(below, { ...edge, label: "below" });
        bands.push({ series: [series.length - 2, series.length - 1], fill: colour + "30" });
      }
      if (this.smooth > 0) {
        add(middle, { label: "raw", stroke: colour + "60", width: 1, points: { show: false } });
      }
      const line = this.smooth > 0 ? smoothed(middle, this.smooth) : middle;
      add(line, { label: curve.label, stroke: colour, width: 2, points: { show: xs.length < 30 } });
      this.legendRows.push({ curve, colour, line });
      tables.push(columns);
    });
    // One table with the x of all curves; uPlot draws through places that a curve lacks.
    const data = tables.length ? (tables.length > 1 ? uPlot.join(tables) : tables[0]) : [[]];
    this.update(data, series, bands, curves);
    this.drawLegend();
  }

  update(data, series, bands, curves) {
    const shape = JSON.stringify([series.map(one => [one.label, one.stroke, one.width, one.points?.show]),
      curves.map(curve => curve.key), this.log, this.x, dark.matches]);
    this.chart.setAttribute("aria-label", `${this.y} over ${LABELS[this.x]}`);
    if (this.chartOf && shape === this.shape) {
      // A part that the user zoomed into stays.
      const { scales, data: [before] } = this.chartOf;
      const zoomed = before.length > 0 && (scales.x.min > before[0] || scales.x.max < before.at(-1));
      this.chartOf.setData(data, !zoomed);
      if (zoomed) this.chartOf.redraw();
      return;
    }
    this.shape = shape;
    this.chartOf?.destroy();
    const styles = getComputedStyle(document.documentElement);
    const text = styles.getPropertyValue("--soft").trim();
    const lines = { stroke: styles.getPropertyValue("--grid").trim(), width: 1 };
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: text, grid: lines, ticks: lines, font };
    const named = this.small ? {} : { label: LABELS[this.x], labelFont: font, labelSize: 20, size: 36 };
    this.chartOf = new uPlot({
      width: this.chart.clientWidth || 600,
      height: this.chart.clientHeight || 320,
      scales: { x: { time: false }, y: { distr: this.log ? 3 : 1 } },
      series, bands,
      legend: { show: false },
      axes: [
        { ...axis, ...named, values: (_, ticks) => ticks.map(this.x === "time" ? clock : tick) },
        // As wide as its longest number.
        { ...axis, size: (_, texts) => Math.max(64, 24 + 7 * Math.max(0, ...(texts ?? []).map(text => text.length))), values: (_, ticks) => ticks.map(value => value == null ? "" : tick(value)) },
      ],
      cursor: { focus: { prox: 24 }, points: { size: 6 }, drag: { x: true, y: false } },
      focus: { alpha: 0.35 },
      hooks: {
        setCursor: [chart => this.hover(chart)],
        setSeries: [(_, index) => { this.near = index; }],
      },
    }, data, this.chart);
    this.chartOf.over.addEventListener("click", () => this.click());
  }

  click() {
    const curve = this.near != null && this.targets[this.near];
    if (!curve) return;
    // Of several runs the one whose own line is nearest to the pointer.
    const chart = this.chartOf;
    const x = chart.posToVal(chart.cursor.left, "x");
    const y = chart.posToVal(chart.cursor.top, "y");
    let best = null;
    for (const line of curve.lines) {
      const distance = Math.abs(at(line, x) - y);
      if (!best || distance < best.distance || Number.isNaN(best.distance)) best = { distance, line };
    }
    this.open(best.line.run.id);
  }

  hover(chart) {
    const index = chart.cursor.idx;
    const x = index == null ? NaN : chart.data[0][index];
    for (const { value, line, curve } of this.legendRows ?? []) {
      if (!value) continue;
      const here = at({ x: curve.xs, y: line }, x);
      let text = Number.isFinite(here) ? number(here) : "";
      if (text && curve.lines.length > 1) {
        text += ` (n = ${curve.lines.filter(line => covers(line, x)).length})`;
      }
      value.textContent = text;
    }
  }

  drawLegend() {
    this.legend.replaceChildren(...this.legendRows.map(row => {
      const n = row.curve.lines.length;
      const many = n > 1;
      const mark = element("span", { class: "mark" });
      mark.style.background = row.colour;
      row.value = element("span", { class: "value" });
      const what = many ? `${row.curve.label} · ${this.by === "iqm" ? "IQM" : "mean"} of ${n} runs` : row.curve.label;
      return element("a", {
        class: "entry", href: "#/run/" + row.curve.lines[0].run.id,
        title: many ? "seeds " + row.curve.lines.map(line => line.run.seed).join(", ") : "open this run",
      }, mark, what, row.value);
    }));
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.chart;
    if (this.chartOf && width && (width !== this.chartOf.width || height !== this.chartOf.height)) {
      this.chartOf.setSize({ width, height });
    }
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");

const tick = value => {
  const size = Math.abs(value);
  if (size >= 1e9) return value / 1e9 + " G";
  if (size >= 1e6) return value / 1e6 + " M";
  if (size >= 1e4) return value / 1e3 + " k";
  if (size !== 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(6)));
};
// Times of ticks, no two of which may read the same: 40 s, 1 min, 1:20 min, 2 h.
const clock = seconds => {
  if (seconds < 60) return tick(seconds) + " s";
  if (seconds >= 3600 || seconds % 60 === 0) return duration(seconds);
  return `${Math.floor(seconds / 60)}:${String(Math.round(seconds % 60)).padStart(2, "0")} min`;
};
const has = values => values && values.some(Number.isFinite);

// A second run with the same settings and seed is no independent sample.
function keepNewest(one) {
  const newest = new Map();
  for (const run of one.runs) {
    const known = newest.get(run.seed);
    if (!known || (run.started ?? "") > (known.started ?? "")) newest.set(run.seed, run);
  }
  one.older = one.runs.length - newest.size;
  one.runs = [...newest.values()];
}

// Runs by what they have in common. The label says in which settings groups differ.
function group(runs, by) {
  const groups = new Map();
  for (const run of runs) {
    const key = by === "run" ? run.id : run.env + "\n" + run.algo + "\n" + run.group;
    if (!groups.has(key)) groups.set(key, { key, runs: [] });
    groups.get(key).runs.push(run);
  }
  const list = [...groups.values()];
  const differing = differences(list.map(one => one.runs[0]));
  const several = new Set(runs.map(run => run.env)).size > 1;
  list.forEach((one, i) => {
    if (by !== "run") keepNewest(one);
    one.runs.sort((a, b) => a.seed - b.seed);
    const run = one.runs[0];
    const parts = [several ? run.env : null, run.algo, ...differing[i]];
    if (by === "run") parts.push(run.name, "seed " + run.seed);
    one.label = parts.filter(Boolean).join(" ");
  });
  return list;
}

// Settings that are not compared, as in `starling plot`.
const UNIMPORTANT = /^(seed|log_every_steps|eval|checkpoint|video|stall_timeout_s|pin_threads|torch_threads)(\.|$)/;

// The end of a name; of a schedule also what it is the schedule of.
function short(name) {
  const parts = name.split(".");
  return parts.slice(/^(start|end|by)$/.test(parts.at(-1)) ? -2 : -1).join(".");
}

// For each run, the settings in which runs of the same environment and algorithm differ.
function differences(runs) {
  const kinds = new Map();
  runs.forEach((run, i) => {
    const key = run.env + "\n" + run.algo;
    if (!kinds.has(key)) kinds.set(key, []);
    kinds.get(key).push(i);
  });
  const result = runs.map(() => []);
  for (const members of kinds.values()) {
    if (members.length < 2) continue;
    const names = Object.keys(runs[members[0]].settings ?? {}).filter(name => !UNIMPORTANT.test(name));
    for (const name of names) {
      const values = members.map(i => JSON.stringify(runs[i].settings?.[name]));
      if (values.every(value => value === values[0])) continue;
      members.forEach((i, k) => {
        if (result[i].length < 3) result[i].push(short(name) + "=" + (values[k] ?? "–").replaceAll('"', ""));
      });
    }
  }
  return result;
}

// Rows with both numbers, in the order of x; of several with the same x the last.
function clean(x, y) {
  const keep = [];
  for (let i = 0; i < Math.min(x.length, y.length); i++) {
    if (!Number.isFinite(x[i]) || !Number.isFinite(y[i])) continue;
    if (keep.length && x[i] === x[keep.at(-1)]) keep.pop();
    if (!keep.length || x[i] > x[keep.at(-1)]) keep.push(i);
  }
  return { x: Float64Array.from(keep, i => x[i]), y: Float64Array.from(keep, i => y[i]) };
}

// Places at which the runs of a curve are sampled: where all have the same, theirs.
function grid(lines) {
  const longest = lines.reduce((a, b) => b.x.length > a.x.length ? b : a);
  const same = lines.every(line => line.x.every((value, i) => value === longest.x[i]));
  if (same) return Array.from(longest.x);
  const low = Math.min(...lines.map(line => line.x[0]));
  const high = Math.max(...lines.map(line => line.x.at(-1)));
  if (high === low) return [low];
  return Array.from({ length: POINTS }, (_, i) => low + (high - low) * i / (POINTS - 1));
}

// The points of a curve, and its band if it has several runs.
function compute(lines, by) {
  if (!lines.length) return { lines };
  if (lines.length === 1) return { lines, xs: Array.from(lines[0].x), middle: Array.from(lines[0].y) };
  const xs = grid(lines);
  return { lines, xs, ...join(lines.map(line => sample(line, xs)), by) };
}

const covers = (line, x) => x >= line.x[0] && x <= line.x.at(-1);

// The value at x on the straight line between neighbours.
function at(line, x) {
  if (!covers(line, x)) return NaN;
  let low = 0, high = line.x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (line.x[middle] <= x) low = middle; else high = middle;
  }
  const width = line.x[high] - line.x[low];
  if (!(width > 0)) return line.y[high];
  return line.y[low] + (line.y[high] - line.y[low]) * (x - line.x[low]) / width;
}

function sample(line, xs) {
  return Float64Array.from(xs, x => at(line, x));
}

// Middle and band of several runs at each place, over the runs that have a value there.
export function join(sampled, by) {
  const length = sampled[0].length;
  const middle = Array(length), below = Array(length), above = Array(length);
  for (let i = 0; i < length; i++) {
    const values = sampled.map(values => values[i]).filter(Number.isFinite);
    if (!values.length) { middle[i] = below[i] = above[i] = null; continue; }
    if (by === "iqm") {
      values.sort((a, b) => a - b);
      middle[i] = interquartileMean(values);
      below[i] = quantile(values, 0.25);
      above[i] = quantile(values, 0.75);
    } else {
      const mean = values.reduce((a, b) => a + b, 0) / values.length;
      const spread = values.length < 2 ? 0
        : Math.sqrt(values.reduce((a, b) => a + (b - mean) ** 2, 0) / (values.length - 1));
      middle[i] = mean;
      below[i] = mean - spread;
      above[i] = mean + spread;
    }
  }
  return { middle, below, above };
}

// Of sorted values; those at the edges of the quartiles count in part.
export function interquartileMean(values) {
  const low = values.length / 4, high = values.length * 3 / 4;
  let sum = 0;
  values.forEach((value, i) => { sum += value * Math.max(0, Math.min(i + 1, high) - Math.max(i, low)); });
  return sum / (high - low);
}

function quantile(values, share) {
  const at = (values.length - 1) * share, low = Math.floor(at);
  const high = Math.min(low + 1, values.length - 1);
  return values[low] + (values[high] - values[low]) * (at - low);
}

// Exponential, without a bias to the first value.
function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map(value => {
    if (value == null) return null;
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}
