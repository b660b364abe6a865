// The page of queues.

import * as store from "./store.js";
import { duration, element, number } from "./format.js";

export function showQueues(place) {
  const { queues } = store;
  if (!queues.length) {
    place.replaceChildren(element("p", { class: "note" },
      "There is no queue in this folder. starling queue, starling sweep and train --seeds create one."));
    return;
  }
  place.replaceChildren(...queues.map(queue => {
    const stages = new Map();
    for (const trial of queue.trials) stages.set(trial.stage, (stages.get(trial.stage) ?? 0) + 1);
    const counts = [...stages].map(([stage, n]) => element("span", { class: "state", "data-state": stage }, `${n} ${stage}`));
    const slots = queue.trials.filter(trial => trial.stage === "running");
    const name = trial => trial.run
      ? element("a", { href: "#/run/" + trial.run }, trial.variant) : trial.variant;
    return element("section", { class: "queue" },
      element("h2", {}, queue.name, " ", element("span", { class: "state", "data-state": queue.running ? "running" : "stopped" },
        queue.running ? "running" : "not running")),
      element("p", { class: "bar" }, ...counts),
      slots.length ? element("ul", { class: "slots" }, ...slots.map(trial => {
        const run = store.runs.get(trial.run);
        const share = run?.of ? Math.min(1, (run.steps ?? 0) / run.of) : 0;
        return element("li", {}, element("b", {}, trial.slot ?? "a slot"), " ", name(trial), ` seed ${trial.seed} `,
          element("progress", { value: share, max: 1 }));
      })) : null,
      element("table", {},
        element("tr", {}, ...["variant", "seed", "state", "score", "time", ""].map(title => element("th", {}, title))),
        ...queue.trials.map(trial => element("tr", {},
          element("td", {}, name(trial)),
          element("td", {}, String(trial.seed)),
          element("td", {}, element("span", { class: "state", "data-state": trial.stage }, trial.stage)),
          element("td", {}, number(trial.score)),
          element("td", {}, trial.seconds ? duration(trial.seconds) : ""),
          element("td", {}, trial.reason ?? "")))));
  }));
}
