// The Plane page: the density of every level, particles in the well and on the spring, and training on drawn data.

import { button, checkbox, digits, dropField, el, group, number, saveFile, segments, select, slider } from "./dom.js";
import { Classes } from "./classes.js";
import { DRAWN_EXTENT, Drawing } from "./drawing.js";
import { Field } from "./field.js";
import { saveFilm } from "./film.js";
import { Panel, recipeBox } from "./panel.js";
import { Particles } from "./particles.js";

const PLAY_EVERY = 900;
const TELL_EVERY = 200;
const FILM_SIDE = 320;
// The process that trains, one drawing at a time.
const TRAINING = "training";

export class Plane {
  constructor(root, link, models) {
    Object.assign(this, { link, models, levels: [], about: [], level: 0, mode: "explore", end: [0.8, 0.8] });
    this.canvas = el("canvas", { tabindex: 0, class: "plane", role: "img", "aria-label": "The plane" });
    this.field = new Field(this.canvas);
    this.drawing = new Drawing(() => this.redraw());
    this.particles = new Particles(link, () => this.chainSettings(), () => this.particlesMoved());
    this.panel = new Panel(link, ["levels.gif", "levels.npz", "levels.csv"], "Make these densities again");
    this.trainPanel = new Panel(link, ["train.gif", "train.npz", "points.csv"]);
    this.trainPanel.cancel.textContent = "Stop";
    this.chainRecipe = recipeBox("Make these steps again");
    root.append(el("div", { class: "columns" }, this.makeStage(), this.makeControls()));
    link.on("levels", (job, header, arrays) => this.hearLevels(job, header, arrays));
    link.on("train", (job, header, arrays) => this.hearTraining(job, header, arrays));
    this.watchPointer();
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
    this.mouse = null;
    this.kernelChanged();
    this.modes.choose("explore");
  }

  // ------------------------------------------------------------------------------------------------------ layout

  makeStage() {
    this.levelSlider = slider("Level", { min: 0, max: 0, value: 0, shown: (t) => this.levelText(t), oninput: (t) => this.setLevel(t) });
    this.playButton = button("Play", () => this.play(), { title: "From noise to data", id: "plane-play" });
    this.levelSlider.input.id = "plane-level";
    this.levelSlider.element.querySelector("label").htmlFor = "plane-level";
    this.readout = el("p", { class: "muted readout", "aria-live": "off" });
    return el(
      "section",
      { class: "stage", "aria-label": "Picture" },
      this.canvas,
      el("div", { class: "player" }, this.playButton, this.levelSlider.element),
      this.readout,
    );
  }

  makeControls() {
    this.modes = segments("Mode", [["explore", "Explore a model"], ["draw", "Draw your own data"]], (mode) => this.setMode(mode));
    this.explore = el("div", {}, this.makeModelGroup(), this.makeSpringGroup(), this.makeChainGroup(), this.panel.element);
    this.draw = el("div", {}, this.makeDrawGroup(), this.makeTrainGroup(), this.trainPanel.element);
    return el("section", { class: "controls", "aria-label": "Controls" }, this.modes.element, this.explore, this.draw);
  }

  makeModelGroup() {
    this.model = select("Model", [], (name) => this.pick(name));
    this.model.input.id = "plane-model";
    this.model.element.querySelector("label").htmlFor = "plane-model";
    this.contours = checkbox("Contours", false, () => this.redraw());
    this.arrows = checkbox("Arrows of the score", false, () => this.redraw());
    const picture = button("Picture (PNG)", () => this.savePicture());
    this.classes = new Classes(() => this.pick(this.shown));
    return group("Energy", this.model.element, this.classes.element, el("div", { class: "checks" }, this.contours.element, this.arrows.element), picture);
  }

  makeSpringGroup() {
    this.spring = checkbox("Hold by the spring", false, () => this.springChanged());
    const note = el("p", { class: "muted" }, "Drag the ring's centre: it is the spring's end, the noisier point that holds this level.");
    return group("Spring", this.spring.element, note);
  }

  makeChainGroup() {
    const kernels = [["langevin", "Langevin, no test"], ["mala", "MALA"], ["hmc", "HMC"], ["nuts", "NUTS"]];
    this.kernel = select("Sampler", kernels, () => this.kernelChanged());
    this.kernel.value = "mala";
    this.stepSize = slider("Step size", { min: 0.005, max: 3, value: 0.2, log: true, shown: (v) => digits(v, 2) });
    this.thin = slider("Steps per frame", { min: 1, max: 20, value: 1 });
    this.leapfrog = slider("Leapfrog steps", { min: 1, max: 20, value: 4 });
    this.dropCount = select("Each click drops", [["1", "1 particle"], ["20", "20 particles"], ["100", "100 particles"]]);
    this.dropCount.value = "20";
    this.runButton = button("Run", () => this.toggleChains(), { class: "primary", id: "plane-run" });
    const everywhere = button("Drop 500 everywhere", () => this.dropEverywhere(500));
    const clear = button("Clear", () => this.particles.clear());
    const csv = button("Particles (CSV)", () => this.saveParticles("particles.csv", this.particles.positions));
    const save = () => this.saveParticles("start.csv", this.particles.stretch.start);
    this.startButton = button("Where they began (CSV)", save, { hidden: true, title: "start.csv of the command below" });
    this.filmButton = button("Film (GIF)", () => this.saveFilm(), { hidden: true });
    this.chainText = el("p", { class: "muted", id: "plane-chains", role: "status" });
    return group(
      "Particles",
      this.dropCount.element,
      this.kernel.element,
      this.stepSize.element,
      this.thin.element,
      this.leapfrog.element,
      el("div", { class: "buttons" }, this.runButton, everywhere, clear, csv, this.filmButton, this.startButton),
      this.chainText,
      this.chainRecipe.element,
    );
  }

  makeDrawGroup() {
    this.tool = segments("Tool", [["stroke", "Strokes"], ["point", "Points"], ["erase", "Erase"]], (tool) => (this.drawing.tool = tool));
    this.tool.choose("stroke");
    const image = dropField("An image as density (dark is dense): ", (file) => this.takeImage(file));
    const clear = button("Clear", () => this.drawing.clear());
    const csv = button("Points (CSV)", () => saveFile("points.csv", csvOf(this.drawing.points), "text/csv"));
    this.drawText = el("p", { class: "muted", role: "status" });
    return group("Your data", this.tool.element, image, el("div", { class: "buttons" }, clear, csv), this.drawText);
  }

  makeTrainGroup() {
    this.iterations = slider("Iterations", { min: 100, max: 5000, step: 100, value: 800 });
    this.trainSeed = number("Seed", 0);
    this.trainButton = button("Train", () => this.train(false), { class: "primary", id: "plane-train" });
    this.continueButton = button("Continue", () => this.train(true), { disabled: true });
    this.exploreButton = button("Explore it", () => this.exploreTrained(), { disabled: true });
    this.trainText = el("p", { class: "muted", role: "status", id: "plane-training" });
    this.modelLink = el("a", { class: "button", hidden: true }, "Model (ZIP)");
    const picture = button("Picture (PNG)", () => this.savePicture());
    const buttons = el("div", { class: "buttons" }, this.trainButton, this.continueButton, this.exploreButton, picture, this.modelLink);
    return group("Training", this.iterations.element, this.trainSeed.element, buttons, this.trainText);
  }

  // ------------------------------------------------------------------------------------------------------- model

  /** Takes the list of models; the first one is shown at once. */
  setModels(models) {
    const plane = models.filter((model) => model.kind === "plane");
    this.model.fill(plane.map((model) => [model.name, model.title]));
    if (!this.shown && plane.length) this.pick(plane[0].name);
  }

  pick(name) {
    if (name !== this.shown) this.classes.set([]);
    this.model.value = name;
    this.shown = name;
    this.levels = [];
    this.particles.clear();
    this.asked = performance.now();
    this.link.start("levels", name, this.classes.options);
  }

  hearLevels(job, header, arrays) {
    if (header.event === "started") {
      // A page that was loaded again hears of old jobs too; the last one is the one to show.
      this.levelsJob = job;
      this.shown = job.model;
      this.model.value = job.model;
    }
    if (job !== this.levelsJob) return;
    if (this.panel.hear(job, header) || header.event !== "level") return;
    this.levels[header.level] = { logDensity: arrays.log_density.data, cells: arrays.log_density.shape[0], score: arrays.score };
    if (this.asked) {
      document.documentElement.dataset.planeMilliseconds = Math.round(performance.now() - this.asked);
      this.asked = null;
    }
    this.takeAbout(header);
    this.classes.set(header.classes);
    if (job.again) this.classes.options = job.options;
    if (header.level === this.level) this.levelChanged();
  }

  takeAbout({ extent, num_levels: count, levels }) {
    this.field.extent = extent;
    const fresh = this.about.length !== count;
    this.about = levels;
    this.levelSlider.range(0, count - 1);
    if (fresh) this.setLevel(Math.min(this.level, count - 1));
  }

  levelText(t) {
    const about = this.about?.[t];
    return about ? `${t}, noise ${digits(about.noise, 2)}` : String(t);
  }

  setLevel(t) {
    this.level = t;
    this.levelSlider.value = t;
    this.levelChanged();
  }

  levelChanged() {
    const about = this.about[this.level];
    if (about && this.sizedFor !== `${this.shown} ${this.level}`) {
      this.sizedFor = `${this.shown} ${this.level}`;
      this.stepSize.value = Math.min(3, Math.max(0.005, about.step_size));
    }
    this.spring.input.disabled = about?.spring == null;
    this.reshape();
  }

  /** Shows the levels from noise to data, one after another. */
  play() {
    if (this.playing) return this.stopPlaying();
    this.playButton.textContent = "Stop";
    this.setLevel(this.about.length - 1);
    this.playing = setInterval(() => {
      if (this.level > 0) this.setLevel(this.level - 1);
      if (this.level === 0) this.stopPlaying();
    }, PLAY_EVERY);
  }

  stopPlaying() {
    clearInterval(this.playing);
    this.playing = null;
    this.playButton.textContent = "Play";
  }

  // ------------------------------------------------------------------------------------------------------ spring

  get held() {
    return this.mode === "explore" && this.spring.input.checked && this.about[this.level]?.spring != null;
  }

  springChanged() {
    this.reshape();
  }

  /** Computes the picture anew: the well, and the spring if it holds. */
  reshape() {
    const shown = this.levels[this.level];
    if (shown) this.field.set(shown.logDensity, shown.cells, this.held ? this.springLog() : null);
    else this.field.picture = null;
    this.redraw();
  }

  springLog() {
    const [x, y] = this.end;
    const [wide, high] = this.about[this.level].spring;
    return (a, b) => -(((a - x) / wide) ** 2 + ((b - y) / high) ** 2) / 2;
  }

  springPull() {
    const [x, y] = this.end;
    const [wide, high] = this.about[this.level].spring;
    return (a, b) => [(x - a) / wide ** 2, (y - b) / high ** 2];
  }

  drawSpring() {
    const { context, extent, canvas } = this.field;
    const [x, y] = this.field.place(...this.end);
    const radii = this.about[this.level].spring.map((width) => (width / (extent[1] - extent[0])) * canvas.width);
    context.strokeStyle = "#ff9d5c";
    context.fillStyle = "#ff9d5c";
    context.lineWidth = 2 * devicePixelRatio;
    context.setLineDash([6 * devicePixelRatio, 5 * devicePixelRatio]);
    context.beginPath();
    context.ellipse(x, y, ...radii, 0, 0, 2 * Math.PI);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.arc(x, y, 7 * devicePixelRatio, 0, 2 * Math.PI);
    context.fill();
    context.strokeStyle = "#1a1a1a";
    context.stroke();
  }

  // --------------------------------------------------------------------------------------------------- particles

  kernelChanged() {
    this.leapfrog.element.hidden = this.kernel.value !== "hmc";
    this.particles.acceptance = null;
    this.particlesMoved();
  }

  chainSettings() {
    const spring = this.held;
    const options = {
      level: this.level,
      kernel: this.kernel.value,
      step_size: this.stepSize.value,
      thin: this.thin.value,
      num_leapfrog: this.leapfrog.value,
      spring,
      ...this.classes.options,
      ...(spring ? { end_x: this.end[0], end_y: this.end[1] } : {}),
    };
    return { model: this.shown, options };
  }

  toggleChains() {
    if (!this.particles.running && !this.particles.count) this.dropEverywhere(500);
    this.particles.running = !this.particles.running;
    this.redraw(false);
    this.tellChains();
  }

  dropAt(x, y, count) {
    const [left, right] = this.field.extent;
    const spread = count > 1 ? 0.012 * (right - left) : 0;
    const around = () => spread * (Math.random() + Math.random() + Math.random() - 1.5) * 2;
    this.particles.drop(Array.from({ length: count }, () => [x + around(), y + around()]));
  }

  dropEverywhere(count) {
    const [left, right, bottom, top] = this.field.extent;
    const anywhere = () => [left + Math.random() * (right - left), bottom + Math.random() * (top - bottom)];
    this.particles.drop(Array.from({ length: count }, anywhere));
  }

  particlesMoved() {
    if (!this.runButton) return;
    this.redraw(false);
    // Thirty new texts a second would cost more than the particles do, and nobody reads them.
    if (this.particles.running) this.telling ??= setTimeout(() => this.tellChains(), TELL_EVERY);
    else this.tellChains();
  }

  tellChains() {
    clearTimeout(this.telling);
    this.telling = null;
    const { particles } = this;
    this.runButton.textContent = particles.running ? "Pause" : "Run";
    const tested = this.kernel.value !== "langevin";
    const acceptance = tested ? `acceptance ${digits(particles.acceptance, 2)}` : "no acceptance test";
    const rate = particles.running ? `, ${Math.round(particles.rate)} frames/s` : "";
    const lost = particles.lost ? `, ${particles.lost} ran away and were put back: use a smaller step size` : "";
    const moving = `${particles.count} particles, ${particles.steps} steps, ${acceptance}${rate}${lost}`;
    this.chainText.textContent = particles.error || (particles.count ? moving : "Click on the plane to drop particles.");
    this.chainText.className = particles.error ? "error" : "muted";
    // Particles that move have no recipe yet: it would be another one before it is read.
    const recipe = particles.running ? null : particles.recipe;
    this.startButton.hidden = !recipe;
    this.filmButton.hidden = particles.running || particles.film.length < 2;
    this.chainRecipe.show(recipe);
    document.documentElement.dataset.framesPerSecond = particles.rate.toFixed(1);
  }

  saveParticles(name, positions) {
    const rows = Array.from({ length: positions.length / 2 }, (_, i) => [positions[2 * i], positions[2 * i + 1]]);
    saveFile(name, csvOf(rows), "text/csv");
  }

  savePicture() {
    const name = this.mode === "draw" ? this.runName ?? "drawing" : `${this.shown.replace(/\W+/g, "-")}-level-${this.level}`;
    this.canvas.toBlob((blob) => saveFile(`${name}.png`, blob));
  }

  /** The particles' last steps above the density, as a GIF. */
  async saveFilm() {
    const { field, particles } = this;
    const paint = (canvas, i) => {
      if (canvas.width !== FILM_SIDE) canvas.width = canvas.height = FILM_SIDE;
      const context = canvas.getContext("2d");
      const scale = FILM_SIDE / field.canvas.width;
      context.drawImage(field.kept, 0, 0, FILM_SIDE, FILM_SIDE);
      particles.drawDots(context, particles.film[i], (x, y) => field.place(x, y).map((pixel) => pixel * scale));
    };
    await saveFilm(this.link, this.shown, "particles.gif", particles.film.length, paint).catch((error) => (this.chainText.textContent = error.message));
  }

  // -------------------------------------------------------------------------------------------------- own data

  setMode(mode) {
    this.mode = mode;
    this.explore.hidden = mode !== "explore";
    this.draw.hidden = mode !== "draw";
    if (mode === "draw") {
      this.particles.running = false;
      this.field.extent = DRAWN_EXTENT;
      this.levels = this.landscape?.levels ?? [];
      this.about = this.landscape?.about ?? [];
      if (this.landscape) this.takeAbout(this.landscape.header);
    } else if (this.shown) this.pick(this.shown);
    this.levelChanged();
    this.particlesMoved();
    this.redraw();
  }

  async takeImage(file) {
    try {
      await this.drawing.takeImage(file);
    } catch (error) {
      this.drawText.textContent = `This image cannot be used: ${error.message}`;
    }
  }

  train(resume) {
    if (!resume) {
      this.landscape = null;
      this.levels = [];
      this.runName = `drawing-${new Date().toISOString().slice(0, 19).replace(/\D/g, "")}`;
    }
    const iterations = resume ? Math.max(this.iterations.value, this.trained?.iterations ?? 0) : this.iterations.value;
    this.trained = { name: this.runName, iterations };
    const options = { name: this.runName, iterations, seed: this.trainSeed.value, resume };
    this.link.start("train", TRAINING, options, resume ? {} : { points: this.drawing.array });
  }

  hearTraining(job, header, arrays) {
    if (header.event === "started") {
      this.trainJob = job;
      this.runName = job.options.name;
      this.trained = { name: this.runName, iterations: job.options.iterations };
      // Training that ended before the page was loaded again does not take the page away from the model it shows.
      if (job.status === "running" && this.mode !== "draw") this.modes.choose("draw");
      this.setTraining(true);
    }
    if (job !== this.trainJob) return;
    if (header.event === "landscape") this.showLandscape(header, arrays);
    if (!this.trainPanel.hear(job, header)) return;
    if (["done", "failed", "cancelled"].includes(header.event)) this.trainingEnded(header);
  }

  showLandscape(header, arrays) {
    const levels = header.levels.map((_, t) => {
      const table = arrays[`log_density_${t}`];
      return { logDensity: table.data, cells: table.shape[0] };
    });
    this.landscape = { header, levels, about: header.levels };
    this.trainText.textContent = `Iteration ${header.iteration}, ${digits(header.seconds, 2)} s`;
    document.documentElement.dataset.iteration = header.iteration;
    if (this.mode !== "draw") return;
    this.levels = levels;
    this.takeAbout(header);
    this.reshape();
  }

  trainingEnded(header) {
    this.setTraining(false);
    if (header.event !== "done") return;
    this.trainedRun = header.run;
    this.modelLink.href = `/model?${new URLSearchParams({ name: header.run })}`;
    this.modelLink.hidden = false;
    const words = header.status === "interrupted" ? "Stopped" : "Finished";
    this.trainText.textContent = `${words} at iteration ${header.iteration}; the run is ${header.run}`;
    this.models.refresh();
  }

  setTraining(on) {
    this.trainButton.disabled = on;
    this.continueButton.disabled = on || !this.runName;
    this.exploreButton.disabled = on;
    this.modelLink.hidden ||= on;
  }

  async exploreTrained() {
    await this.models.refresh();
    this.shown = this.trainedRun ?? this.shown;
    this.classes.set([]);
    this.modes.choose("explore");
  }

  // ---------------------------------------------------------------------------------------- pointer and keyboard

  watchPointer() {
    const { canvas } = this;
    let dragging = null;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const [x, y] = this.field.point(event);
      if (this.mode === "draw") {
        dragging = "draw";
        this.drawing.press(x, y, true);
      } else if (this.held && this.nearEnd(x, y)) dragging = "spring";
      else this.dropAt(x, y, Number(this.dropCount.value));
    });
    canvas.addEventListener("pointermove", (event) => {
      this.mouse = this.field.point(event);
      if (dragging === "draw") this.drawing.press(...this.mouse, false);
      else if (dragging === "spring") this.moveEnd(this.mouse);
      else this.showReadout();
    });
    canvas.addEventListener("pointerup", () => (dragging = null));
    canvas.addEventListener("pointercancel", () => (dragging = null));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  nearEnd(x, y) {
    const near = 0.04 * (this.field.extent[1] - this.field.extent[0]);
    return Math.hypot(x - this.end[0], y - this.end[1]) < near;
  }

  moveEnd(point) {
    this.end = point;
    this.reshape();
  }

  /** Arrow keys move a cross over the plane, or with Shift the spring's end; Enter does what a click does. */
  key(event) {
    const [left, right] = this.field.extent;
    const step = 0.03 * (right - left);
    const way = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
    if (way) {
      event.preventDefault();
      if (event.shiftKey && this.held) this.moveEnd([this.end[0] + way[0], this.end[1] + way[1]]);
      else this.cross = [(this.cross?.[0] ?? 0) + way[0], (this.cross?.[1] ?? 0) + way[1]];
      this.redraw();
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.cross ??= [0, 0];
      if (this.mode === "draw") this.drawing.press(...this.cross, true);
      else this.dropAt(...this.cross, Number(this.dropCount.value));
    } else if (event.key === " " && this.mode === "explore") {
      event.preventDefault();
      this.toggleChains();
    }
  }

  showReadout() {
    const shown = this.levels[this.level];
    if (!shown || !this.mouse) return;
    const [left, right, bottom, top] = this.field.extent;
    const column = Math.floor(((this.mouse[0] - left) / (right - left)) * shown.cells);
    const row = Math.floor(((this.mouse[1] - bottom) / (top - bottom)) * shown.cells);
    const value = shown.logDensity[row * shown.cells + column];
    const [x, y] = this.mouse.map((v) => v.toFixed(2));
    this.readout.textContent = `x = (${x}, ${y}), log-density of level ${this.level}: ${digits(value, 3)} nats (normalised over the window)`;
  }

  // ----------------------------------------------------------------------------------------------------- drawing

  /** Draws soon. Where only particles moved, the density below them is not drawn anew. */
  redraw(density = true) {
    this.stale ||= density;
    if (this.pending || !this.canvas.isConnected) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    if (!this.canvas.clientWidth) return;
    const { field } = this;
    field.fit();
    if (this.stale || !field.drawKept()) this.paintDensity();
    if (this.mode === "draw") {
      this.drawing.draw(field);
      const { length } = this.drawing.points;
      this.drawText.textContent = length ? `${length} points` : "Draw on the plane with the mouse, a finger, or arrow keys and Enter.";
    } else this.particles.draw(field);
    if (this.held) this.drawSpring();
    if (this.cross && document.activeElement === this.canvas) this.drawCross();
  }

  paintDensity() {
    const { field } = this;
    const shown = this.levels[this.level];
    field.drawHeat();
    if (shown && this.contours.input.checked) field.drawContours();
    if (shown?.score && this.arrows.input.checked) field.drawArrows(shown.score, this.held ? this.springPull() : null);
    field.keep();
    this.stale = false;
  }

  drawCross() {
    const { context } = this.field;
    const [x, y] = this.field.place(...this.cross);
    const size = 9 * devicePixelRatio;
    context.strokeStyle = "#ffffff";
    context.lineWidth = 2 * devicePixelRatio;
    context.beginPath();
    context.moveTo(x - size, y);
    context.lineTo(x + size, y);
    context.moveTo(x, y - size);
    context.lineTo(x, y + size);
    context.stroke();
  }
}

function csvOf(rows) {
  return ["x,y", ...rows.map(([x, y]) => `${x},${y}`)].join("\n") + "\n";
}
