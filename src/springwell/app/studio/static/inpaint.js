// Inpainting: paint over what the model shall fill in.

import { button, el, group, number, slider } from "./dom.js";
import { Panel } from "./panel.js";
import { drawSheet, pixels } from "./sheet.js";

const SIDE = 336;

export class Inpaint {
  constructor(page) {
    this.page = page;
    this.panel = new Panel(page.link, ["inpaint.png", "inpaint.npz", "image.png", "mask.png"]);
    this.painter = el("canvas", { class: "painter", tabindex: 0, id: "painter", role: "img", "aria-label": "Paint what is hidden" });
    this.results = el("canvas", { class: "sheet", role: "img", "aria-label": "Filled in", id: "inpainted" });
    this.hint = el("p", { class: "muted" }, "Choose an image, then paint over what is to be filled in: drag, or move by arrow keys and press the space bar.");
    const painted = el("figure", {}, this.painter, el("figcaption", {}, "Orange is hidden"));
    this.stage = el("div", {}, this.hint, el("div", { class: "pictures" }, painted, el("figure", {}, this.results)));
    this.brush = slider("Brush", { min: 1, max: 9, value: 3, shown: (v) => `${v} px` });
    this.num = slider("Samples", { min: 1, max: 8, value: 4 });
    this.sweeps = slider("Sweeps", { min: 0, max: 16, value: 4 });
    this.seed = number("Seed", 0);
    const buttons = el(
      "div",
      { class: "buttons" },
      button("Fill in", () => this.start(), { class: "primary", id: "fill-in" }),
      button("Hide the right half", () => this.hideHalf()),
      button("Clear the mask", () => this.clear()),
    );
    const controls = group("Inpainting", this.brush.element, this.num.element, this.sweeps.element, this.seed.element, buttons);
    this.controls = el("div", {}, controls, this.panel.element);
    page.onImage((image) => this.take(image));
    page.link.on("inpaint", (job, header, arrays) => this.hear(job, header, arrays));
    this.watch();
  }

  take(image) {
    this.image = image;
    this.results.width = 0;
    if (!image) {
      this.painter.width = 0;
      return;
    }
    const [height, width] = image.shape;
    this.mask = new Uint8Array(height * width);
    this.cursor = [Math.floor(width / 2), Math.floor(height / 2)];
    this.factor = Math.max(1, Math.floor(SIDE / Math.max(height, width)));
    this.painter.width = width * this.factor;
    this.painter.height = height * this.factor;
    this.brush.value = Math.max(2, Math.round(width / 9));
    this.paint();
  }

  clear() {
    this.mask?.fill(0);
    this.paint();
  }

  hideHalf() {
    if (!this.image) return;
    const [height, width] = this.image.shape;
    for (let y = 0; y < height; y++) this.mask.fill(1, y * width + Math.floor(width / 2), (y + 1) * width);
    this.paint();
  }

  /** Hides the pixels under a round brush. */
  hide(x, y) {
    const [height, width] = this.image.shape;
    const radius = this.brush.value / 2;
    for (let j = 0; j < height; j++) {
      for (let i = 0; i < width; i++) if (Math.hypot(i + 0.5 - x, j + 0.5 - y) <= radius) this.mask[j * width + i] = 1;
    }
    this.paint();
  }

  watch() {
    const place = (event) => {
      const box = this.painter.getBoundingClientRect();
      const [height, width] = this.image.shape;
      return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
    };
    let down = false;
    this.painter.addEventListener("pointerdown", (event) => {
      if (!this.image) return;
      down = true;
      this.painter.setPointerCapture(event.pointerId);
      this.hide(...place(event));
    });
    this.painter.addEventListener("pointermove", (event) => down && this.hide(...place(event)));
    this.painter.addEventListener("pointerup", () => (down = false));
    this.painter.addEventListener("pointercancel", () => (down = false));
    this.painter.addEventListener("keydown", (event) => this.key(event));
    this.painter.addEventListener("blur", () => this.paint());
  }

  key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!this.image || (!way && event.key !== " ")) return;
    event.preventDefault();
    const [height, width] = this.image.shape;
    if (way) {
      this.cursor = [clamp(this.cursor[0] + way[0], width), clamp(this.cursor[1] + way[1], height)];
      this.paint();
    } else this.hide(this.cursor[0] + 0.5, this.cursor[1] + 0.5);
  }

  paint() {
    if (!this.image) return;
    const [height, width] = this.image.shape;
    const small = new OffscreenCanvas(width, height);
    const image = pixels(this.image);
    for (let i = 0; i < this.mask.length; i++) if (this.mask[i]) image.data.set([214, 112, 32, 255], 4 * i);
    small.getContext("2d").putImageData(image, 0, 0);
    const context = this.painter.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, this.painter.width, this.painter.height);
    if (document.activeElement !== this.painter) return;
    context.strokeStyle = "#ff9d5c";
    context.lineWidth = 2;
    context.strokeRect(this.cursor[0] * this.factor, this.cursor[1] * this.factor, this.factor, this.factor);
  }

  start() {
    if (!this.image) {
      this.hint.textContent = "Choose an image first: draw samples, take a test image or drop a file.";
      return;
    }
    const options = { num: this.num.value, seed: this.seed.value, sweeps: this.sweeps.value };
    const mask = { data: this.mask, shape: this.image.shape.slice(0, 2) };
    this.page.start("inpaint", options, { image: this.image, mask });
  }

  hear(job, header, arrays) {
    if (header.event === "started") {
      this.job = job;
      this.page.resume(job);
    }
    if (job !== this.job || this.panel.hear(job, header) || header.event !== "images") return;
    this.filled = arrays.images;
    drawSheet(this.results, arrays.images, Math.min(4, arrays.images.shape[0]), 96);
  }
}

function clamp(value, size) {
  return Math.max(0, Math.min(size - 1, value));
}
