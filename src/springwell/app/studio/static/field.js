// A density in the plane on a canvas: heat map, contours, arrows of the score; and the way between pixels and coordinates.

import { VIRIDIS, paint } from "./colours.js";

// The density that the brightest colour stands for: all but two in a thousand cells are below it.
const BRIGHTEST = 0.998;
const CONTOURS = [0.1, 0.3, 0.6, 0.9];

export class Field {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.extent = [-3, 3, -3, 3];
    this.density = null;
    this.cells = 0;
  }

  /** Takes a table of log-densities, row by row from the bottom; `extra(x, y)` is added to it, such as a spring. */
  set(logDensity, cells, extra = null) {
    const values = new Float64Array(logDensity);
    if (extra) this.eachNode(cells, (x, y, i) => (values[i] += extra(x, y)));
    let top = -Infinity;
    for (const value of values) if (value > top) top = value;
    for (let i = 0; i < values.length; i++) values[i] = Math.exp(values[i] - top);
    const ordered = Float64Array.from(values).sort();
    const brightest = ordered[Math.floor(BRIGHTEST * (ordered.length - 1))] || 1;
    // A narrow peak would be dark all around if its own top were the brightest colour.
    for (let i = 0; i < values.length; i++) values[i] = Math.min(1, values[i] / brightest);
    this.density = values;
    this.cells = cells;
    this.picture = heatPicture(values, cells);
  }

  eachNode(cells, act) {
    const [left, right, bottom, top] = this.extent;
    for (let j = 0, i = 0; j < cells; j++) {
      const y = bottom + ((top - bottom) * (j + 0.5)) / cells;
      for (let k = 0; k < cells; k++, i++) act(left + ((right - left) * (k + 0.5)) / cells, y, i);
    }
  }

  /** Pixels of a point. */
  place(x, y) {
    const [left, right, bottom, top] = this.extent;
    const { width, height } = this.canvas;
    return [((x - left) / (right - left)) * width, ((top - y) / (top - bottom)) * height];
  }

  /** The point of a pointer's event. */
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const [left, right, bottom, top] = this.extent;
    return [
      left + ((event.clientX - box.left) / box.width) * (right - left),
      top - ((event.clientY - box.top) / box.height) * (top - bottom),
    ];
  }

  /** Gives the canvas as many pixels as the screen has at its place. */
  fit() {
    const size = Math.round(this.canvas.clientWidth * devicePixelRatio) || 600;
    if (this.canvas.width !== size) this.canvas.width = this.canvas.height = size;
  }

  /** Keeps what is drawn now, to be drawn again at once. */
  keep() {
    const { width, height } = this.canvas;
    this.kept = new OffscreenCanvas(width, height);
    this.kept.getContext("2d", { alpha: false }).drawImage(this.canvas, 0, 0);
  }

  /** Draws what was kept; returns false if there is nothing of this size. */
  drawKept() {
    if (this.kept?.width !== this.canvas.width) return false;
    this.context.drawImage(this.kept, 0, 0);
    return true;
  }

  drawHeat() {
    const { context, canvas } = this;
    context.fillStyle = "#440154";
    context.fillRect(0, 0, canvas.width, canvas.height);
    if (!this.picture) return;
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.picture, 0, 0, canvas.width, canvas.height);
  }

  drawContours() {
    if (!this.density) return;
    const { context } = this;
    context.strokeStyle = "rgb(255 255 255 / 0.75)";
    context.lineWidth = devicePixelRatio;
    context.beginPath();
    for (const level of CONTOURS) this.trace(level);
    context.stroke();
  }

  /** Marching squares: the line where the density crosses a level, cell by cell. */
  trace(level) {
    const { density, cells, context, canvas } = this;
    const size = canvas.width / cells;
    const at = (j, k) => density[j * cells + k] - level;
    for (let j = 0; j + 1 < cells; j++) {
      for (let k = 0; k + 1 < cells; k++) {
        const corners = [at(j, k), at(j, k + 1), at(j + 1, k + 1), at(j + 1, k)];
        const ends = [];
        for (let edge = 0; edge < 4; edge++) {
          const a = corners[edge];
          const b = corners[(edge + 1) % 4];
          if (a > 0 === b > 0) continue;
          const share = a / (a - b);
          const [dx, dy] = [[share, 0], [1, share], [1 - share, 1], [0, 1 - share]][edge];
          ends.push([(k + 0.5 + dx) * size, canvas.height - (j + 0.5 + dy) * size]);
        }
        for (let i = 0; i + 1 < ends.length; i += 2) {
          context.moveTo(...ends[i]);
          context.lineTo(...ends[i + 1]);
        }
      }
    }
  }

  /** Arrows along the score, {data, shape: [m, m, 2]}; `extra(x, y)` is added to it. Lengths grow as the square root. */
  drawArrows(score, extra = null) {
    const { context, canvas } = this;
    const m = score.shape[0];
    const step = canvas.width / m;
    const vectors = new Float64Array(score.data);
    if (extra) {
      this.eachNode(m, (x, y, i) => {
        const [dx, dy] = extra(x, y);
        vectors[2 * i] += dx;
        vectors[2 * i + 1] += dy;
      });
    }
    let longest = 1e-9;
    for (let i = 0; i < m * m; i++) longest = Math.max(longest, Math.hypot(vectors[2 * i], vectors[2 * i + 1]));
    context.strokeStyle = "rgb(255 255 255 / 0.85)";
    context.lineWidth = 1.2 * devicePixelRatio;
    context.beginPath();
    this.eachNode(m, (x, y, i) => {
      const [dx, dy] = [vectors[2 * i], vectors[2 * i + 1]];
      const size = Math.hypot(dx, dy);
      if (size < 1e-6 * longest) return;
      const length = (0.9 * step * Math.sqrt(size / longest)) / size;
      const [px, py] = this.place(x, y);
      arrow(context, px, py, px + length * dx, py - length * dy);
    });
    context.stroke();
  }
}

function arrow(context, x, y, tipX, tipY) {
  const [dx, dy] = [tipX - x, tipY - y];
  const head = 0.3;
  context.moveTo(x, y);
  context.lineTo(tipX, tipY);
  context.moveTo(tipX - head * (dx + 0.6 * dy), tipY - head * (dy - 0.6 * dx));
  context.lineTo(tipX, tipY);
  context.lineTo(tipX - head * (dx - 0.6 * dy), tipY - head * (dy + 0.6 * dx));
}

function heatPicture(values, cells) {
  const picture = new OffscreenCanvas(cells, cells);
  const image = new ImageData(cells, cells);
  for (let j = 0; j < cells; j++) {
    for (let k = 0; k < cells; k++) paint(VIRIDIS, values[j * cells + k], image.data, 4 * ((cells - 1 - j) * cells + k));
  }
  picture.getContext("2d").putImageData(image, 0, 0);
  return picture;
}
