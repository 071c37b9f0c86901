// Long chains at level 0, without springs: nothing but the energy holds the images now.

import { lineChart } from "./charts.js";
import { button, digits, el, group, npy, saveFile, select, slider } from "./dom.js";
import { MOST_PICTURES, saveFilm } from "./film.js";
import { recipeBox } from "./panel.js";
import { withSteps } from "./particles.js";
import { drawSheet } from "./sheet.js";

const SHOWN = 400;

export class Walk {
  constructor(page) {
    this.page = page;
    this.canvas = el("canvas", { class: "sheet", role: "img", "aria-label": "Chains", id: "chains" });
    this.chart = el("div", {});
    this.text = el("p", { class: "muted", role: "status" }, "Draw samples first; they are where the chains begin.");
    this.stage = el("div", {}, this.canvas, this.chart);
    const kernels = [["mala", "MALA"], ["hmc", "HMC"], ["langevin", "Langevin, no test"]];
    this.kernel = select("Sampler", kernels, (kernel) => (this.leapfrog.element.hidden = kernel !== "hmc"));
    this.recipe = recipeBox();
    this.stepSize = slider("Step size", { min: 0.0005, max: 0.3, value: 0.01, log: true, shown: (v) => digits(v, 2) });
    this.steps = slider("Steps per frame", { min: 1, max: 50, value: 5 });
    this.leapfrog = slider("Leapfrog steps", { min: 1, max: 10, value: 2 });
    this.run = button("Run", () => this.toggle(), { class: "primary", id: "walk" });
    const again = button("Begin again", () => this.reset());
    const png = button("Picture (PNG)", () => this.canvas.toBlob((blob) => blob && saveFile("chains.png", blob)));
    const gif = button("Film (GIF)", () => this.saveFilm());
    const csv = button("f over time (CSV)", () => this.save());
    this.startButton = button("Where they began (NPY)", () => saveFile("start.npy", npy(this.stretch.start)), { hidden: true });
    this.leapfrog.element.hidden = true;
    const sliders = [this.kernel, this.stepSize, this.steps, this.leapfrog];
    const buttons = el("div", { class: "buttons" }, this.run, again, png, gif, csv, this.startButton);
    this.controls = el("div", {}, group("Chains without springs", ...sliders.map((one) => one.element), buttons, this.text, this.recipe.element));
    this.reset();
  }

  modelChanged() {
    this.stop();
    this.reset();
  }

  left() {
    this.stop();
  }

  reset() {
    Object.assign(this, { state: null, done: 0, history: [], film: [], stretch: null, generation: (this.generation ?? 0) + 1 });
    this.showRecipe();
    this.canvas.width = 0;
    this.chart.replaceChildren();
  }

  stop() {
    this.running = false;
    this.run.textContent = "Run";
    this.showRecipe();
  }

  /** How to make the chains again that are shown: the steps with these settings from where they began. */
  showRecipe() {
    const recipe = !this.running && this.stretch?.recipe;
    this.startButton.hidden = !recipe;
    this.recipe.show(recipe ? withSteps(recipe, this.done - this.stretch.since) : null);
  }

  toggle() {
    if (this.running) return this.stop();
    if (!this.page.samples) {
      this.text.textContent = "Draw samples first; they are where the chains begin.";
      return;
    }
    this.running = true;
    this.run.textContent = "Pause";
    this.showRecipe();
    this.loop();
  }

  /** The first chains begin at the samples that were drawn, bytes [N, H, W, C] as numbers [N, C, H, W] in [-1, 1]. */
  begin() {
    const { data, shape } = this.page.samples;
    const [count, height, width, channels] = [Math.min(16, shape[0]), ...shape.slice(1)];
    const state = new Float32Array(count * height * width * channels);
    for (let n = 0, to = 0; n < count; n++) {
      for (let c = 0; c < channels; c++) {
        for (let i = 0; i < height * width; i++) state[to++] = Math.fround(data[(n * height * width + i) * channels + c] / 127.5) - 1;
      }
    }
    this.state = { data: state, shape: [count, channels, height, width] };
  }

  async loop() {
    if (this.looping) return;
    this.looping = true;
    while (this.running) {
      if (!this.state) this.begin();
      const generation = this.generation;
      const options = {
        kernel: this.kernel.value,
        step_size: this.stepSize.value,
        num_leapfrog: this.leapfrog.value,
        seed: 0,
        ...this.page.classes.options,
      };
      const key = JSON.stringify(options);
      if (this.stretch?.key !== key) this.stretch = { key, start: this.state, since: this.done };
      Object.assign(options, { steps: this.steps.value, first: this.done, since: this.stretch.since });
      try {
        const { header, arrays } = await this.page.link.ask("walk", this.page.name, options, { state: this.state });
        if (generation === this.generation) this.show(header, arrays, options);
      } catch (error) {
        this.text.textContent = error.message;
        if (!error.message.includes("connection")) this.stop();
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
    }
    this.looping = false;
  }

  show(header, arrays, options) {
    this.state = arrays.state;
    this.done += options.steps;
    const f = [...arrays.f.data];
    this.stretch.recipe = header.recipe;
    this.showRecipe();
    this.history.push({ steps: this.done, acceptance: header.acceptance, f });
    if (this.history.length > 5000) this.history.shift();
    this.film.push(arrays.images);
    // Every second picture is let go whenever there are twice as many as a film has.
    if (this.film.length > 2 * MOST_PICTURES) this.film = this.film.filter((_, i) => i % 2 === 0);
    drawSheet(this.canvas, arrays.images);
    const shown = this.history.slice(-SHOWN);
    const chains = f.slice(0, 8).map((_, n) => ({ name: `chain ${n}`, y: shown.map((row) => row.f[n] ?? null), share: n / 8 }));
    this.chart.replaceChildren(lineChart("f of the chains, nats", shown.map((row) => row.steps), chains, { label: "steps" }));
    const mean = f.reduce((sum, value) => sum + value, 0) / f.length;
    const acceptance = header.acceptance == null ? "no acceptance test" : `acceptance ${digits(header.acceptance, 2)}`;
    this.text.textContent = `${f.length} chains, ${this.done} steps, mean f ${digits(mean, 5)} nats, ${acceptance}`;
  }

  async saveFilm() {
    if (!this.film.length) return;
    const paint = (canvas, i) => drawSheet(canvas, this.film[i], undefined, 56);
    await saveFilm(this.page.link, this.page.name, "chains.gif", this.film.length, paint).catch((error) => (this.text.textContent = error.message));
  }

  save() {
    const count = this.history[0]?.f.length ?? 0;
    const names = Array.from({ length: count }, (_, n) => `f_${n}`);
    const rows = this.history.map((row) => [row.steps, row.acceptance ?? "", ...row.f].join(","));
    saveFile("chains.csv", [["steps", "acceptance", ...names].join(","), ...rows].join("\n") + "\n", "text/csv");
  }
}
