// The table of runs. Only the rows that can be seen exist.

import { count, duration, element, number, startOf } from "./format.js";

const ROW = 28;
const EXTRA = 8;

const left = run => run.state === "running" && run.speed > 0 && run.of > run.steps
  ? (run.of - run.steps) / run.speed : null;
const age = run => {
  run.start ??= startOf(run.started) ?? run.updated;
  return Date.now() / 1000 - run.start;
};

// key, title, value to sort by, text, whether it is a number
export const COLUMNS = [
  ["env", "environment", run => run.env, run => run.env],
  ["algo", "algorithm", run => run.algo, run => run.algo],
  ["name", "name", run => run.name, run => run.name],
  ["seed", "seed", run => run.seed, run => String(run.seed), true],
  ["state", "state", run => run.state, run => run.state],
  ["steps", "steps", run => run.steps, run => count(run.steps), true],
  ["return", "return", run => run.return, run => number(run.return), true],
  ["speed", "steps/s", run => run.speed, run => count(run.speed), true],
  ["left", "time left", left, run => duration(left(run)), true],
  ["age", "age", age, run => duration(age(run)), true],
];

export class RunTable {
  constructor({ open, choose }) {
    this.open = open;
    this.choose = choose;
    this.box = document.getElementById("table");
    this.body = document.getElementById("body");
    this.rows = document.getElementById("rows");
    this.sort = { key: "age", down: false };
    this.list = [];
    this.pool = [];
    this.chosen = new Set();
    const head = document.getElementById("head");
    this.all = element("input", { type: "checkbox", "aria-label": "Select all", onchange: () => this.chooseAll() });
    head.append(element("span", { class: "cell pick" }, this.all));
    this.heads = new Map();
    for (const [key, title, , , numeric] of COLUMNS) {
      const cell = element("button", {
        class: `cell ${key}${numeric ? " numeric" : ""}`, role: "columnheader",
        onclick: () => this.sortBy(key, numeric),
      }, title);
      this.heads.set(key, cell);
      head.append(cell);
    }
    // Once per frame, however many events there are.
    this.scrolled = 0;
    this.box.addEventListener("scroll", () => { this.scrolled = Date.now(); this.schedule(); }, { passive: true });
    new ResizeObserver(() => this.schedule()).observe(this.box);
    setInterval(() => this.schedule(), 1000);
    this.markSort();
  }

  sortBy(key, numeric) {
    const down = this.sort.key === key ? !this.sort.down : Boolean(numeric) && key !== "age";
    this.sort = { key, down };
    this.markSort();
    this.show(this.list);
  }

  markSort() {
    for (const [key, cell] of this.heads) {
      const sorted = key === this.sort.key;
      cell.setAttribute("aria-sort", sorted ? (this.sort.down ? "descending" : "ascending") : "none");
    }
  }

  chooseAll() {
    if (this.all.checked) for (const run of this.list) this.chosen.add(run.id);
    else this.chosen.clear();
    this.schedule();
    this.choose();
  }

  // Runs in the order of the chosen column; those without a value last.
  show(list) {
    const value = COLUMNS.find(([key]) => key === this.sort.key)[2];
    const sign = this.sort.down ? -1 : 1;
    const keyed = list.map(run => [value(run), run]);
    keyed.sort(([a, first], [b, second]) => {
      if (a == null || b == null) return (a == null) - (b == null);
      if (a < b) return -sign;
      if (a > b) return sign;
      return first.id < second.id ? -1 : 1;
    });
    this.list = keyed.map(([, run]) => run);
    this.schedule();
  }

  schedule() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => { this.planned = false; this.draw(); });
  }

  draw() {
    const height = this.list.length * ROW;
    if (this.height !== height) {
      this.height = height;
      this.body.style.height = height + "px";
    }
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - EXTRA);
    const seen = Math.ceil(this.box.clientHeight / ROW) + 2 * EXTRA;
    while (this.pool.length < Math.min(seen, this.list.length)) this.pool.push(this.makeRow());
    // A place of the list keeps its element while it can be seen.
    const size = this.pool.length;
    for (let i = 0; i < size; i++) {
      const index = first + i;
      const row = this.pool[index % size];
      const run = this.list[index];
      if (row.element.hidden !== !run) row.element.hidden = !run;
      if (run) this.fill(row, run, index);
    }
    this.all.checked = this.list.length > 0 && this.list.every(run => this.chosen.has(run.id));
  }

  makeRow() {
    const row = { texts: [], cells: [] };
    row.box = element("input", {
      type: "checkbox", "aria-label": "Select this run",
      onclick: event => event.stopPropagation(),
      onchange: () => {
        if (row.box.checked) this.chosen.add(row.run.id); else this.chosen.delete(row.run.id);
        this.schedule();
        this.choose();
      },
    });
    row.element = element("div", {
      class: "row", role: "row", onclick: () => this.open(row.run.id),
    }, element("span", { class: "cell pick" }, row.box));
    for (const [key, , , , numeric] of COLUMNS) {
      const cell = element("span", { class: `cell ${key}${numeric ? " numeric" : ""}`, role: "cell" });
      row.cells.push(cell);
      row.element.append(cell);
    }
    this.rows.append(row.element);
    return row;
  }

  fill(row, run, index) {
    row.run = run;
    if (row.index !== index) {
      row.index = index;
      row.element.style.transform = `translateY(${index * ROW}px)`;
    }
    const chosen = this.chosen.has(run.id);
    if (row.box.checked !== chosen) row.box.checked = chosen;
    COLUMNS.forEach(([key, , , text], i) => {
      const now = text(run);
      if (row.texts[i] === now) return;
      row.texts[i] = now;
      row.cells[i].textContent = now;
      if (key === "state") row.cells[i].dataset.state = now;
      if (i < 3) row.cells[i].title = now;
    });
    const error = run.error ?? "";
    if (row.error !== error) { row.error = error; row.cells[4].title = error; }
  }
}
