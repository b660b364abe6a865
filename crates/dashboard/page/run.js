// The page of one run.

import * as store from "./store.js";
import { Curves } from "./curves.js";
import { Process } from "./process.js";
import { Stage } from "./stage.js";
import { bytes, count, duration, element, number, startOf } from "./format.js";

// Columns that have a small chart of their own, if the run has them.
const SMALL = ["Diagnostics/StepsPerSecond", "losses/loss", "losses/policy_loss", "losses/value_loss", "losses/entropy",
  "charts/epsilon", "charts/learning_rate", "LengthAverage"];
// Gauges: what a run reports about itself besides learning.
const GAUGE = /^(Diagnostics|charts|losses)\//;

export class RunPage {
  constructor(place, { open, stop, checkpoint }) {
    this.place = place;
    this.open = open;
    this.askStop = stop;
    this.askCheckpoint = checkpoint;
  }

  // The page is left.
  leave() {
    this.id = null;
    this.stage?.close();
    this.stage = null;
  }

  show(id) {
    this.leave();
    this.id = id;
    this.details = null;
    this.saved = null;
    const run = store.runs.get(id);
    this.missing = !run;
    if (!run) {
      this.place.replaceChildren(element("p", { class: "note" }, "There is no such run."));
      return;
    }
    this.logTo = 0;
    this.head = element("div", { class: "run-head" });
    this.curvesAt = element("section", { class: "curves" });
    this.small = element("div", { class: "small" });
    this.gauges = element("dl", { class: "gauges" });
    this.log = element("pre", { class: "log", tabindex: 0 });
    this.settings = element("section");
    this.rest = element("section");
    this.checkpoints = element("section", { class: "checkpoints", hidden: true });
    const stage = element("section", { class: "stage" });
    const process = element("section", { class: "process", hidden: true });
    const roles = element("section", { class: "roles", hidden: true });
    this.stage = new Stage(stage, id);
    this.process = new Process(id, { gauges: element("dl", { class: "gauges" }), process, roles });
    this.place.replaceChildren(this.head,
      this.curvesAt,
      element("section", {}, this.small),
      element("div", { class: "columns" }, stage, process),
      element("section", {}, element("h2", {}, "Gauges"), this.process.gauges, this.gauges),
      roles,
      this.checkpoints,
      this.rest,
      this.settings,
      element("section", {}, element("h2", {}, "Log"), this.log));
    this.curves = new Curves(this.curvesAt, { open: () => {}, grouping: false });
    this.smallCharts = [];
    this.update();
  }

  // What does not change while a run is in progress. A request that is lost is repeated by the next update.
  async readDetails() {
    const id = this.id;
    if (this.asked === id) return;
    this.asked = id;
    const details = await store.details(id).catch(() => null);
    if (this.asked === id) this.asked = null;
    if (!details || this.id !== id) return;
    this.details = details;
    this.curves.setNames(details.columns, details.eval_columns);
    this.smallCharts = SMALL.filter(name => details.columns.includes(name)).map(name => {
      const place = element("figure", {}, element("figcaption", {}, name));
      this.small.append(place);
      return new Curves(place, { open: () => {}, grouping: false, y: name, small: true });
    });
    this.drawRest();
    this.drawSettings();
    this.update();
  }

  // Called when colours have changed.
  draw() {
    if (!this.id) return;
    for (const chart of [this.curves, ...this.smallCharts]) chart?.draw();
  }

  // Called when the run has changed.
  update() {
    const run = store.runs.get(this.id);
    if (!run) return;
    // It was opened before the server had seen the run.
    if (this.missing) { this.show(this.id); return; }
    const facts = [
      ["state", element("span", { class: "state", "data-state": run.state }, run.state)],
      ["steps", count(run.steps) + (run.of ? " of " + count(run.of) : "")],
      ["return", number(run.return)],
      ["steps/s", count(run.speed)],
      ["episodes", count(run.episodes)],
      ["time", duration(run.seconds)],
    ];
    const buttons = run.state !== "running" ? [] : [
      element("button", { id: "save", onclick: () => this.askCheckpoint(run) }, "Checkpoint"), " ",
      element("button", { class: "danger", id: "stop", onclick: () => this.askStop(run) }, "Stop")];
    this.head.replaceChildren(
      element("a", { href: "#/" }, "← runs"),
      element("h1", {}, `${run.env} · ${run.algo} · ${run.name} · seed ${run.seed}`),
      element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value || "–")])),
      ...buttons,
      ...(run.error ? [element("p", { class: "error" }, run.error)] : []));
    this.curves.show([this.id]);
    for (const chart of this.smallCharts) chart.show([this.id]);
    if (!this.details) this.readDetails();
    this.drawGauges();
    this.process.update(run);
    this.drawCheckpoints(run);
    this.readLog();
  }

  async drawGauges() {
    const names = (this.details?.columns ?? []).filter(name => GAUGE.test(name));
    if (!names.length) return;
    const found = (await store.columns([this.id], names)).get(this.id);
    if (!found) return;
    this.gauges.replaceChildren(...names.flatMap(name => {
      const values = found[name];
      const last = values.length ? values[values.length - 1] : NaN;
      if (!Number.isFinite(last)) return [];
      return [element("dt", {}, name), element("dd", {}, number(last))];
    }));
  }

  async readLog() {
    const run = store.runs.get(this.id);
    if (this.reading || run.log <= this.logTo) return;
    this.reading = true;
    const id = this.id;
    const part = await store.log(id, this.logTo).catch(() => null);
    this.reading = false;
    if (!part || id !== this.id) return;
    const atEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 30;
    if (part.from !== this.logTo && part.from > 0) this.log.textContent = "…\n";
    this.log.append(part.text);
    this.logTo = part.to;
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  async drawCheckpoints(run) {
    if (this.saved === run.saved) return;
    this.saved = run.saved;
    const id = this.id;
    const found = await store.checkpoints(id).catch(() => null);
    if (id !== this.id) return;
    if (!found) { this.saved = null; return; }
    this.checkpoints.hidden = !found.length;
    this.checkpoints.replaceChildren(element("h2", {}, "Checkpoints"), element("table", {},
      element("tr", {}, ...["steps", "score", "size", "written", ""].map(title => element("th", {}, title))),
      ...found.toReversed().map(one => element("tr", {},
        element("td", {}, one.step.toLocaleString("en-US")),
        element("td", {}, number(one.score)),
        element("td", {}, bytes(one.bytes)),
        element("td", {}, one.time ? new Date(one.time * 1000).toLocaleString() : ""),
        element("td", {}, one.best ? "best" : "")))));
  }

  drawRest() {
    const { details } = this;
    const copy = text => element("button", {
      onclick: event => { navigator.clipboard.writeText(text); event.target.textContent = "copied"; },
    }, "copy");
    const line = text => element("div", { class: "command" }, element("code", {}, text), copy(text));
    this.rest.replaceChildren(element("h2", {}, "Repeat"));
    this.rest.append(line(details.repeat));
    if (details.command) this.rest.append(element("p", { class: "note" }, "started as"), line(details.command));
    this.rest.append(element("p", { class: "note" }, details.path));
    if (details.videos.length) {
      this.rest.append(element("h2", {}, "Videos"), element("div", { class: "videos" },
        ...details.videos.map((name, i) => {
          const address = `/api/runs/${this.id}/videos/${i}`;
          const picture = name.endsWith(".gif") ? element("img", { src: address, alt: name })
            : element("video", { src: address, controls: true, preload: "metadata" });
          return element("figure", {}, picture, element("figcaption", {}, name));
        })));
    }
  }

  drawSettings() {
    const own = this.details.settings;
    const others = [...store.runs.values()].filter(run => run.id !== this.id);
    const self = store.runs.get(this.id);
    const near = run => (run.env === self.env) * 2 + (run.algo === self.algo);
    others.sort((a, b) => near(b) - near(a) || (startOf(b.started) ?? 0) - (startOf(a.started) ?? 0));
    const choice = element("select", { name: "other", onchange: () => draw() });
    if (this.details.preset) choice.append(element("option", { value: "preset" }, "the preset"));
    for (const run of others) {
      choice.append(element("option", { value: run.id }, `${run.env} ${run.algo} ${run.name} seed ${run.seed}`));
    }
    const only = element("input", { type: "checkbox", name: "only", checked: true, onchange: () => draw() });
    const table = element("table", { class: "settings" });
    const draw = () => {
      const other = choice.value === "preset" ? this.details.preset : store.runs.get(choice.value)?.settings;
      const names = [...new Set([...Object.keys(own), ...Object.keys(other ?? {})])];
      const text = value => value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
      const rows = names.map(name => [name, text(own[name]), other ? text(other[name]) : ""]);
      const differ = rows.filter(row => other && row[1] !== row[2]);
      table.replaceChildren(element("tr", {}, ...["setting", "this run", other ? choice.selectedOptions[0].text : ""]
        .map(title => element("th", {}, title))));
      const shown = only.checked && other ? differ : rows;
      for (const [name, value, there] of shown) {
        table.append(element("tr", { class: other && value !== there ? "differs" : "" },
          element("td", {}, name), element("td", {}, value), element("td", {}, there)));
      }
      if (!shown.length) table.append(element("tr", {}, element("td", { colspan: 3 }, "no differences")));
    };
    this.settings.replaceChildren(element("h2", {}, "Settings"),
      element("div", { class: "bar controls" },
        element("label", {}, "compared with ", choice),
        element("label", {}, only, " only what differs")),
      table);
    draw();
  }
}
