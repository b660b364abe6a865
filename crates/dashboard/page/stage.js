// The agent playing now: pictures of a process that plays with the latest checkpoint while this is open.

import * as store from "./store.js";
import { element, number } from "./format.js";

export class Stage {
  constructor(place, id) {
    this.id = id;
    this.button = element("button", { id: "watch", onclick: () => this.running ? this.end() : this.begin() }, "Watch");
    this.words = element("span", { class: "note", role: "status" },
      "plays the latest checkpoint in a separate process, on the CPU with the lowest priority");
    this.canvas = element("canvas", { id: "agent", hidden: true, width: 1, height: 1 });
    place.replaceChildren(element("h2", {}, "Live agent"),
      element("div", { class: "bar" }, this.button, this.words), this.canvas);
    // Nobody sees a page in the background.
    this.onHidden = () => { if (document.hidden) this.end(); };
    document.addEventListener("visibilitychange", this.onHidden);
  }

  async begin() {
    const running = this.running = new AbortController();
    this.button.textContent = "Stop watching";
    this.words.textContent = "loading the checkpoint …";
    try {
      for await (const { about, picture } of store.pictures(this.id, running.signal)) {
        if (about.error) throw new Error(about.error);
        const image = await createImageBitmap(picture);
        if (this.running !== running) return;
        Object.assign(this.canvas, { width: image.width, height: image.height, hidden: false });
        this.canvas.getContext("2d").drawImage(image, 0, 0);
        image.close();
        this.canvas.dataset.step = about.step;
        this.words.textContent = `checkpoint of step ${about.checkpoint.toLocaleString("en-US")} · episode ${about.episode}`
          + ` · step ${about.step.toLocaleString("en-US")} · return ${number(about.return)}${about.ended ? " · ended" : ""}`;
      }
      if (this.running === running) this.words.textContent = "the connection was closed";
    } catch (error) {
      if (this.running === running) this.words.textContent = error.message;
    }
    if (this.running === running) this.stopped();
  }

  end() {
    if (!this.running) return;
    this.running.abort();
    this.stopped();
    this.words.textContent = "";
  }

  stopped() {
    this.running = null;
    this.button.textContent = "Watch";
  }

  // When the page of the run is left.
  close() {
    this.end();
    document.removeEventListener("visibilitychange", this.onHidden);
  }
}
