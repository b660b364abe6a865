// What a run's process says about itself: where its time goes, its memory, and who takes part in the run.

import * as store from "./store.js";
import { bytes, count, duration, element } from "./format.js";

export class Process {
  constructor(id, { gauges, process, roles }) {
    Object.assign(this, { id, gauges, process, roles });
  }

  // Called when the run has changed.
  async update(run) {
    if (!run.live || (this.written === run.live && this.state === run.state)) return;
    this.written = run.live;
    this.state = run.state;
    const live = await store.live(this.id).catch(() => null);
    if (!live) return;
    this.drawGauges(run, live);
    this.drawProfile(live.profile);
    this.drawRoles(run, live);
  }

  drawGauges(run, live) {
    // Between this report and the one before; a resumed run counts from the beginning.
    const before = this.before?.process === live.process && this.before.written < live.written ? this.before : null;
    if (live.written !== this.before?.written) {
      if (before) this.busy = (live.cpu_s - before.cpu_s) / (live.written - before.written);
      this.before = live;
    }
    const running = run.state === "running";
    const rows = [["process", String(live.process)],
      ["resident memory", live.memory_bytes ? bytes(live.memory_bytes) : null],
      ["CPU time", live.cpu_s == null ? null : duration(live.cpu_s)],
      ["busy cores", running && this.busy != null ? this.busy.toFixed(2) : null]];
    this.gauges.replaceChildren(...rows.filter(([, value]) => value != null)
      .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }

  // Bars: each activity's share of its component's time.
  drawProfile(components) {
    this.process.hidden = !components.length;
    this.process.replaceChildren(element("h2", {}, "Profile"),
      element("p", { class: "note" }, "time of all threads of a component since the process started"),
      ...components.map(component => {
        const total = component.activities.reduce((sum, one) => sum + one.seconds, 0);
        return element("div", { class: "component" },
          element("h3", {}, component.name, element("span", { class: "value" }, " " + spent(total))),
          ...component.activities.map(one => {
            const share = total > 0 ? one.seconds / total : 0;
            const bar = element("span", { class: "share" });
            bar.style.width = (100 * share).toFixed(1) + "%";
            return element("div", { class: "activity", title: `${count(one.times)} times, `
                + `${(one.seconds / Math.max(1, one.times) * 1e6).toFixed(0)} µs each` },
              element("span", {}, one.name), element("span", { class: "track" }, bar),
              element("span", { class: "numeric" }, (100 * share).toFixed(1) + " %"),
              element("span", { class: "numeric" }, spent(one.seconds)));
          }));
      }));
  }

  drawRoles(run, live) {
    this.roles.hidden = !live.roles.length;
    const running = run.state === "running";
    // What was silent when the report was written has been silent for longer now.
    const since = Math.max(0, Date.now() / 1000 - live.written);
    const row = role => element("tr", {},
      element("td", {}, role.role),
      element("td", {}, role.name),
      element("td", {}, element("span", { class: "state",
        "data-state": !running ? "stopped" : role.state === "no connection" ? "failed" : "running" },
      running ? role.state : "the run has ended")),
      element("td", {}, role.envs == null ? "" : count(role.envs)),
      element("td", {}, role.parcels == null ? "" : count(role.parcels)),
      element("td", {}, running && role.silent_s != null ? duration(role.silent_s + since) + " ago" : ""));
    this.roles.replaceChildren(element("h2", {}, "Roles"), element("table", {},
      element("tr", {}, ...["role", "machine and process", "state", "environments", "batches sent", "last message"]
        .map(title => element("th", {}, title))),
      ...live.roles.map(row)));
  }
}

const spent = seconds => seconds < 100 ? seconds.toFixed(seconds < 10 ? 2 : 1) + " s" : duration(seconds);
