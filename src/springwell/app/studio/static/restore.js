// Restoration: an image is measured with noise, blur or at a coarse scale, and the model draws what it may have been.

import { button, digits, el, group, number, select, slider } from "./dom.js";
import { Panel } from "./panel.js";
import { drawImage, drawSheet, imageAt } from "./sheet.js";

const TASKS = [["denoise", "Noise"], ["deblur", "Blur and noise"], ["superres", "Coarse scale and noise"]];

export class Restore {
  constructor(page) {
    this.page = page;
    this.panel = new Panel(page.link, ["restore.png", "restore.npz", "image.png"]);
    const names = { image: "Image", measured: "Measurement", mean: "Posterior mean", std: "Standard deviation", samples: "Samples" };
    this.canvases = {};
    const figures = Object.entries(names).map(([name, text]) => {
      this.canvases[name] = el("canvas", { class: "sheet", role: "img", "aria-label": text });
      return el("figure", { class: name }, this.canvases[name], el("figcaption", {}, text));
    });
    this.spread = figures[3].querySelector("figcaption");
    this.hint = el("p", { class: "muted" }, "Choose an image, then how it is measured.");
    this.stage = el("div", {}, this.hint, el("div", { class: "pictures" }, ...figures));
    this.task = select("Measured with", TASKS, () => this.taskChanged());
    this.noise = slider("Noise", { min: 0.01, max: 1, value: 0.3, step: 0.01, shown: (v) => v.toFixed(2) });
    this.width = slider("Blur", { min: 0.3, max: 3, value: 1, step: 0.1, shown: (v) => `${v.toFixed(1)} px` });
    this.factor = select("Scale", []);
    this.num = slider("Samples", { min: 2, max: 8, value: 4 });
    this.sweeps = slider("Sweeps", { min: 0, max: 8, value: 0 });
    this.seed = number("Seed", 0);
    const start = button("Restore", () => this.start(), { class: "primary", id: "restore" });
    const sliders = [this.task, this.noise, this.width, this.factor, this.num, this.sweeps, this.seed];
    const controls = group("Restoration", ...sliders.map((one) => one.element), el("div", { class: "buttons" }, start));
    this.controls = el("div", {}, controls, this.panel.element);
    this.taskChanged();
    page.onImage((image) => this.take(image));
    page.link.on("restore", (job, header, arrays) => this.hear(job, header, arrays));
  }

  taskChanged() {
    this.width.element.hidden = this.task.value !== "deblur";
    this.factor.element.hidden = this.task.value !== "superres";
    this.noise.value = this.task.value === "denoise" ? 0.3 : 0.05;
  }

  modelChanged() {
    const factors = [2, 4, 7, 8].filter((factor) => this.page.shape[1] % factor === 0 && factor < this.page.shape[1]);
    this.factor.fill(factors.map((factor) => [String(factor), `1 / ${factor}`]));
  }

  take(image) {
    this.image = image;
    for (const canvas of Object.values(this.canvases)) canvas.width = 0;
    if (image) drawImage(this.canvases.image, image, 112);
  }

  start() {
    if (!this.image) {
      this.hint.textContent = "Choose an image first: draw samples, take a test image or drop a file.";
      return;
    }
    const options = {
      task: this.task.value,
      noise: this.noise.value,
      width: this.width.value,
      factor: Number(this.factor.value),
      num: this.num.value,
      seed: this.seed.value,
      sweeps: this.sweeps.value,
    };
    this.page.start("restore", options, { image: this.image });
  }

  hear(job, header, arrays) {
    if (header.event === "started") {
      this.job = job;
      this.page.resume(job);
    }
    if (job !== this.job || this.panel.hear(job, header)) return;
    if (header.event === "measured") drawImage(this.canvases.measured, imageAt(arrays.images, 0), 112);
    if (header.event !== "restored") return;
    drawImage(this.canvases.mean, imageAt(arrays.mean, 0), 112);
    drawImage(this.canvases.std, imageAt(arrays.std, 0), 112);
    drawSheet(this.canvases.samples, arrays.samples, arrays.samples.shape[0], 112);
    this.spread.textContent = `Standard deviation, white is ${digits(header.largest_std, 2)}`;
  }
}
