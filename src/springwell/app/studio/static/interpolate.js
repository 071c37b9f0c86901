// Samples between two or four samples, with sliders along the path or the surface.

import { button, el, group, number, segments, slider } from "./dom.js";
import { Panel } from "./panel.js";
import { drawImage, drawSheet, imageAt } from "./sheet.js";

const ALONG = { 2: 17, 4: 7 };

export class Interpolate {
  constructor(page) {
    this.page = page;
    this.panel = new Panel(page.link, ["interpolate.png", "interpolate.gif", "interpolate.npz"]);
    this.one = el("canvas", { class: "sheet", role: "img", "aria-label": "The sample at the sliders' place" });
    this.all = el("canvas", { class: "sheet", role: "img", "aria-label": "All samples between the ends" });
    this.across = slider("From A to B", { min: 0, max: 1, value: 0, step: 0.001, shown: percent, oninput: () => this.show() });
    this.down = slider("Down to C and D", { min: 0, max: 1, value: 0, step: 0.001, shown: percent, oninput: () => this.show() });
    this.stage = el("div", { class: "pictures" }, el("figure", {}, this.one), el("figure", {}, this.all));
    this.seeds = [0, 1, 2, 3].map((seed, i) => number(`Seed of ${"ABCD"[i]}`, seed));
    this.corners = segments("Ends", [["2", "Two samples"], ["4", "Four samples"]], (count) => this.setCorners(Number(count)));
    const start = button("Interpolate", () => this.start(), { class: "primary" });
    const fields = this.seeds.map((seed) => seed.element);
    const buttons = el("div", { class: "buttons" }, start);
    const controls = group("Between samples", this.corners.element, ...fields, buttons, this.across.element, this.down.element);
    this.controls = el("div", {}, controls, this.panel.element);
    this.corners.choose("2");
    page.link.on("interpolate", (job, header, arrays) => this.hear(job, header, arrays));
  }

  setCorners(count) {
    this.count = count;
    for (const seed of this.seeds.slice(2)) seed.element.hidden = count === 2;
    this.down.element.hidden = count === 2;
  }

  modelChanged() {
    this.images = null;
    this.one.width = this.all.width = 0;
  }

  start() {
    const seeds = this.seeds.slice(0, this.count).map((seed) => seed.value);
    this.page.start("interpolate", { seeds, num: ALONG[this.count] });
  }

  hear(job, header, arrays) {
    if (header.event === "started") {
      this.job = job;
      this.page.resume(job);
    }
    if (job !== this.job || this.panel.hear(job, header) || header.event !== "images") return;
    Object.assign(this, { images: arrays.images, num: header.num, surface: header.seeds.length === 4 });
    drawSheet(this.all, this.images, this.surface ? this.num : undefined, 44);
    this.show();
  }

  show() {
    if (!this.images) return;
    const column = Math.round(this.across.value * (this.num - 1));
    const row = this.surface ? Math.round(this.down.value * (this.num - 1)) : 0;
    drawImage(this.one, imageAt(this.images, row * this.num + column), 224);
  }
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}
