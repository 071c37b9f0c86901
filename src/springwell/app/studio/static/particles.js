// Particles that move by a sampler. The server makes a few frames at a time, and the page asks for more before it has shown them.

// Frames a second that are shown; the most frames of one request, and the milliseconds that a request should take.
const RATE = 30;
const MOST_FRAMES = 6;
const PATIENCE = 150;
const TRAIL = 14;
const FEW = 60;
// Frames that are remembered for a film, the last ten seconds.
const FILMED = 300;
export const MOST = 2000;

export class Particles {
  /** `settings()` gives {model, options} of the next request; `changed` is called when there is something to draw. */
  constructor(link, settings, changed) {
    Object.assign(this, { link, settings, changed });
    this.positions = new Float32Array(0);
    this.seed = 0;
    this.chunk = 2;
    this.clear();
  }

  get count() {
    return this.positions.length / 2;
  }

  clear() {
    this.positions = new Float32Array(0);
    Object.assign(this, { steps: 0, acceptance: null, lost: 0, shownAt: [], error: "" });
    this.beginAnew();
  }

  /** Puts particles at points [x, y]. */
  drop(points) {
    const room = MOST - this.count;
    const added = points.slice(0, Math.max(0, room)).flat();
    const all = new Float32Array(this.positions.length + added.length);
    all.set(this.positions);
    all.set(added, this.positions.length);
    this.positions = all;
    this.beginAnew();
  }

  /** Forgets the frames that were asked for: they are about other particles. */
  beginAnew() {
    this.generation = (this.generation ?? 0) + 1;
    Object.assign(this, { queue: [], trail: [], film: [], stretch: null, asking: null });
    this.changed();
  }

  set running(on) {
    this.on = on;
    this.error = "";
    if (on) this.loop();
  }

  get running() {
    return Boolean(this.on);
  }

  /** Asks for frames and shows them, thirty a second, until it is stopped. */
  async loop() {
    if (this.looping) return;
    this.looping = true;
    let asked = null;
    let due = performance.now();
    while (this.on) {
      if (!asked && this.count && this.queue.length < MOST_FRAMES) asked = this.more().finally(() => (asked = null));
      await wait(Math.max(5, due - performance.now()));
      const now = performance.now();
      if (!this.on || !this.queue.length || now < due) continue;
      due = Math.max(due + 1000 / RATE, now - 1000 / RATE);
      this.show(this.queue.shift(), now);
    }
    this.looping = false;
  }

  /**
   * Asks for the next frames. A stretch is what one recipe makes again: steps with the same settings from where they began.
   * It has the settings, the positions `start`, and the number `since` of its first step.
   */
  async more() {
    const { model, options } = this.settings();
    const generation = this.generation;
    const last = this.queue[this.queue.length - 1] ?? { positions: this.positions, number: this.steps };
    const key = JSON.stringify([model, options, this.seed]);
    if (this.asking?.key !== key) this.asking = { key, start: last.positions, since: last.number };
    const stretch = this.asking;
    const frames = this.chunk;
    const asked = performance.now();
    const values = { ...options, frames, first: last.number, since: stretch.since, seed: this.seed };
    try {
      const { header, arrays } = await this.link.ask("chains", model, values, {
        positions: { data: last.positions, shape: [last.positions.length / 2, 2] },
      });
      // Particles that were dropped or removed meanwhile make the answer one about others.
      if (generation !== this.generation) return;
      const size = last.positions.length;
      // NUTS takes many gradients a step; fewer frames at a time keep it answering.
      const quick = (PATIENCE * frames) / (performance.now() - asked);
      this.chunk = Math.max(1, Math.min(MOST_FRAMES, Math.floor(quick)));
      stretch.recipe = header.recipe;
      for (let i = 0; i < frames; i++) {
        const positions = arrays.frames.data.slice(i * size, (i + 1) * size);
        // No recipe makes particles again that ran away and were put back; from there on it begins anew.
        this.queue.push({ positions, number: last.number + (i + 1) * options.thin, stretch: header.lost ? null : stretch });
      }
      if (header.lost) this.asking = null;
      Object.assign(this, { acceptance: header.acceptance, lost: header.lost, error: "" });
    } catch (error) {
      this.error = error.message;
      this.changed();
      await wait(500);
    }
  }

  show({ positions, number, stretch }, now) {
    if (this.count <= FEW) {
      this.trail.push(this.positions);
      if (this.trail.length > TRAIL) this.trail.shift();
    }
    this.film.push(positions);
    if (this.film.length > FILMED) this.film.shift();
    Object.assign(this, { positions, steps: number, stretch });
    this.shownAt.push(now);
    while (this.shownAt.length && this.shownAt[0] < now - 2000) this.shownAt.shift();
    this.changed();
  }

  /** How to make the positions that are shown from `stretch.start`; null if nothing does. */
  get recipe() {
    return this.stretch && withSteps(this.stretch.recipe, this.steps - this.stretch.since);
  }

  /** Frames a second over the last two seconds. */
  get rate() {
    const times = this.shownAt;
    return times.length > 1 ? (1000 * (times.length - 1)) / (times[times.length - 1] - times[0]) : 0;
  }

  draw(field) {
    const { context } = field;
    if (this.count <= FEW && this.trail.length) this.drawTrails(field);
    this.drawDots(context, this.positions, (x, y) => field.place(x, y));
  }

  drawDots(context, positions, place) {
    const dot = this.count <= FEW ? largeDot() : smallDot();
    const half = dot.width / 2;
    for (let i = 0; i < positions.length; i += 2) {
      const [x, y] = place(positions[i], positions[i + 1]);
      context.drawImage(dot, Math.round(x - half), Math.round(y - half));
    }
  }

  drawTrails(field) {
    const { context } = field;
    const path = [...this.trail, this.positions];
    context.strokeStyle = "rgb(255 255 255 / 0.55)";
    context.lineWidth = 1.2 * devicePixelRatio;
    context.beginPath();
    for (let i = 0; i < this.positions.length; i += 2) {
      path.forEach((frame, age) => {
        const [x, y] = field.place(frame[i], frame[i + 1]);
        if (age) context.lineTo(x, y);
        else context.moveTo(x, y);
      });
    }
    context.stroke();
  }
}

// A picture of a dot is copied many times faster than a circle is drawn.
const smallDot = once(() => dotPicture(2.1, 0.7));
const largeDot = once(() => dotPicture(4, 1.2));

function once(make) {
  let made = null;
  return () => (made ??= make());
}

function dotPicture(radius, line) {
  const size = Math.ceil(2 * (radius + line) * devicePixelRatio) + 1;
  const picture = new OffscreenCanvas(size, size);
  const context = picture.getContext("2d");
  context.fillStyle = "#ffffff";
  context.strokeStyle = "#111111";
  context.lineWidth = line * devicePixelRatio;
  context.arc(size / 2, size / 2, radius * devicePixelRatio, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
  return picture;
}

/** A recipe of so many steps. */
export function withSteps({ command, python }, steps) {
  return { command: command.replace("STEPS", steps), python: python.replace("STEPS", steps) };
}

function wait(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
