// The Images page: a model, a tool, and one image that the tools share.

import { Classes } from "./classes.js";
import { acceptDrops, button, dropField, el, group, number, segments, select } from "./dom.js";
import { Inpaint } from "./inpaint.js";
import { Interpolate } from "./interpolate.js";
import { Restore } from "./restore.js";
import { Sample } from "./sample.js";
import { Score } from "./score.js";
import { drawImage, imageAt } from "./sheet.js";
import { Walk } from "./walk.js";
import { unpack } from "./wire.js";

const TOOLS = {
  sample: ["Sample", Sample],
  interpolate: ["Interpolate", Interpolate],
  inpaint: ["Inpaint", Inpaint],
  restore: ["Restore", Restore],
  score: ["Score", Score],
  walk: ["Long chains", Walk],
};

export class Images {
  constructor(root, link) {
    Object.assign(this, { link, image: null, samples: null, listeners: [] });
    this.model = select("Model", [], (name) => this.pick(name));
    this.model.input.id = "images-model";
    this.model.element.querySelector("label").htmlFor = "images-model";
    this.classes = new Classes();
    this.tools = {};
    for (const [name, [, Tool]] of Object.entries(TOOLS)) this.tools[name] = new Tool(this);
    this.chooser = segments("Tool", Object.entries(TOOLS).map(([name, [title]]) => [name, title]), (name) => this.show(name));
    const stages = Object.values(this.tools).map((tool) => tool.stage);
    const controls = Object.values(this.tools).map((tool) => tool.controls);
    const stage = el("section", { class: "stage", "aria-label": "Pictures" }, ...stages);
    this.picker = this.makePicker();
    const side = el("section", { class: "controls", "aria-label": "Controls" }, this.model.element, this.classes.element, this.picker, ...controls);
    root.append(this.chooser.element, el("div", { class: "columns" }, stage, side));
    acceptDrops(stage, (file) => this.takeFile(file));
    this.chooser.choose("sample");
  }

  /** Where the image of the tools comes from: a sample, a test image, a file. */
  makePicker() {
    this.thumbs = el("div", { class: "thumbs", role: "group", "aria-label": "Samples to choose from" });
    this.testNumber = number("Test image", 0, { onchange: () => this.takeTest() });
    this.pickerText = el("p", { class: "muted", role: "status" }, "Draw samples to choose one of them.");
    return group(
      "Image",
      this.thumbs,
      this.testNumber.element,
      el("div", { class: "buttons" }, button("Take the test image", () => this.takeTest()), button("Next", () => this.nextTest())),
      dropField("A file of your own: ", (file) => this.takeFile(file)),
      this.pickerText,
    );
  }

  setModels(models) {
    const images = models.filter((model) => model.kind === "images");
    this.known = Object.fromEntries(images.map((model) => [model.name, model]));
    this.model.fill(images.map((model) => [model.name, `${model.title} (${model.shape[2]} x ${model.shape[1]})`]));
    if (this.shape || !images.length) return;
    if (this.known[this.wanted]) {
      this.model.value = this.wanted;
      this.shape = this.known[this.wanted].shape;
      this.tools.restore.modelChanged();
      this.prepare();
    } else this.pick(images.find((model) => model.title === "digits")?.name ?? images[0].name);
  }

  /** A page that was loaded again shows the tool and the model of its last job. */
  resume(job) {
    if (!job.again) return;
    this.wanted = job.model;
    this.wantedClass = job.options;
    this.chooser.choose(job.task);
  }

  pick(name) {
    this.model.value = name;
    this.shape = this.known[name].shape;
    this.samples = null;
    this.classes.set([]);
    this.setImage(null);
    this.thumbs.replaceChildren();
    for (const tool of Object.values(this.tools)) tool.modelChanged?.();
    this.prepare();
  }

  /** Has the model loaded before anything is asked of it; nothing is lost if it is not. */
  prepare() {
    if (!this.visible || !this.name) return;
    const { name } = this;
    const known = ({ header }) => {
      if (name !== this.name) return;
      this.classes.set(header.classes);
      if (this.wantedClass) this.classes.options = this.wantedClass;
      this.wantedClass = null;
    };
    this.link.ask("ready", name, {}).then(known, () => {});
  }

  /** Starts a job of the model, or of the class that is chosen. */
  start(task, options, arrays) {
    return this.link.start(task, this.name, { ...options, ...this.classes.options }, arrays);
  }

  setVisible(visible) {
    this.visible = visible;
    this.prepare();
  }

  get name() {
    return this.model.value;
  }

  show(name) {
    for (const [other, tool] of Object.entries(this.tools)) {
      tool.stage.hidden = tool.controls.hidden = other !== name;
      if (other !== name) tool.left?.();
    }
    this.picker.hidden = !["inpaint", "restore", "score"].includes(name);
  }

  onImage(listener) {
    this.listeners.push(listener);
  }

  setImage(image, text = "") {
    this.image = image;
    if (text) this.pickerText.textContent = text;
    for (const listener of this.listeners) listener(image);
  }

  /** Takes the samples of the Sample tool as images to choose from. */
  offer(samples) {
    this.samples = samples;
    const shown = Math.min(16, samples.shape[0]);
    const buttons = Array.from({ length: shown }, (_, n) => {
      const canvas = el("canvas", {});
      drawImage(canvas, imageAt(samples, n), 40);
      const one = button("", () => {
        for (const other of this.thumbs.children) other.setAttribute("aria-pressed", String(other === one));
        this.setImage(imageAt(samples, n), `Sample ${n}`);
      }, { "aria-pressed": "false", "aria-label": `Sample ${n}` });
      one.append(canvas);
      return one;
    });
    this.thumbs.replaceChildren(...buttons);
    if (!this.image) buttons[0].click();
  }

  nextTest() {
    this.testNumber.value = this.testNumber.value + 1;
    this.takeTest();
  }

  async takeTest() {
    this.pickerText.textContent = "Reading the test images.";
    try {
      const { header, arrays } = await this.link.ask("photograph", this.name, { number: this.testNumber.value });
      for (const thumb of this.thumbs.children) thumb.setAttribute("aria-pressed", "false");
      this.setImage(arrays.image, `Test image ${header.number} of ${header.of}`);
    } catch (error) {
      this.pickerText.textContent = error.message;
    }
  }

  async takeFile(file) {
    this.pickerText.textContent = `Reading ${file.name}.`;
    const answer = await fetch(`/upload?${new URLSearchParams({ model: this.name })}`, { method: "POST", body: file });
    if (!answer.ok) {
      this.pickerText.textContent = `${file.name}: ${await answer.text()}`;
      return;
    }
    const { arrays } = unpack(await answer.arrayBuffer());
    for (const thumb of this.thumbs.children) thumb.setAttribute("aria-pressed", "false");
    this.setImage(arrays.image, `${file.name}, cropped and resized to ${this.shape[2]} x ${this.shape[1]}`);
  }
}
