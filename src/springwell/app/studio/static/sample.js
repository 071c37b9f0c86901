// Samples, and the way from noise to them, level by level.

import { button, checkbox, el, group, number, slider } from "./dom.js";
import { Panel } from "./panel.js";
import { drawSheet } from "./sheet.js";

export class Sample {
  constructor(page) {
    this.page = page;
    this.frames = new Map();
    this.panel = new Panel(page.link, ["sample.png", "sample.gif", "sample.npz"]);
    this.canvas = el("canvas", { class: "sheet", role: "img", "aria-label": "Samples", id: "samples" });
    this.way = slider("Level", { min: 0, max: 0, value: 0, oninput: (i) => this.showFrame(i), shown: (i) => this.levelText(i) });
    this.way.element.hidden = true;
    this.hint = el("p", { class: "muted" }, "Press Draw samples. They begin as noise and become images level by level.");
    this.stage = el("div", {}, this.hint, this.canvas, el("div", { class: "player" }, this.way.element));
    this.num = slider("Samples", { min: 1, max: 64, value: 16 });
    this.seed = number("Seed", 0);
    this.quick = checkbox("Quick: few gradients each, where a model has no chains and more levels", true);
    const draw = button("Draw samples", () => this.draw(), { class: "primary", id: "draw-samples" });
    const next = button("Next seed", () => {
      this.seed.value = this.seed.value + 1;
      this.draw();
    });
    const controls = group("Samples", this.num.element, this.seed.element, this.quick.element, el("div", { class: "buttons" }, draw, next));
    this.controls = el("div", {}, controls, this.panel.element);
    page.link.on("sample", (job, header, arrays) => this.hear(job, header, arrays));
  }

  modelChanged() {
    this.frames.clear();
    this.way.element.hidden = true;
    this.canvas.width = 0;
    this.hint.hidden = false;
  }

  draw() {
    this.asked = performance.now();
    this.page.link.cancel(this.job?.status === "running" ? this.job : null);
    this.page.start("sample", { num: this.num.value, seed: this.seed.value, quick: this.quick.input.checked });
  }

  hear(job, header, arrays) {
    if (header.event === "started") {
      this.job = job;
      this.page.resume(job);
      this.frames.clear();
    }
    if (job !== this.job || this.panel.hear(job, header) || header.event !== "frame") return;
    if (this.asked && this.frames.size === 0) document.documentElement.dataset.sampleMilliseconds = Math.round(performance.now() - this.asked);
    this.frames.set(header.t, arrays.images);
    const levels = this.levels();
    this.way.element.hidden = levels.length < 2;
    this.way.range(0, levels.length - 1);
    this.way.value = levels.length - 1;
    drawSheet(this.canvas, arrays.images);
    this.hint.hidden = true;
    if (header.t > 0) return;
    if (this.asked) document.documentElement.dataset.sampledMilliseconds = Math.round(performance.now() - this.asked);
    this.asked = null;
    this.page.offer(arrays.images);
  }

  /** The levels that there are frames of, noisiest first. */
  levels() {
    return [...this.frames.keys()].sort((a, b) => b - a);
  }

  levelText(i) {
    return String(this.levels()[i] ?? "");
  }

  showFrame(i) {
    const frame = this.frames.get(this.levels()[i]);
    if (frame) drawSheet(this.canvas, frame);
  }
}
