// Charts on canvases: lines, and tables of levels over iterations as heat maps. Colours are the page's own.

import { SIGNS, VIRIDIS, css, paint } from "./colours.js";
import { button, digits, el, saveFile } from "./dom.js";

const HEIGHT = 170;
const MARGIN = { left: 60, right: 12, top: 8, bottom: 32 };
// A heat map has its scale of colours to the right.
const SCALE = { gap: 10, width: 10, text: 46 };
// Lines of two runs differ by colour and by dashes.
const LINES = [["--accent", []], ["--focus", [6, 4]]];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A figure with a canvas that is drawn again whenever its size changes, and a button that saves it. */
function figure(title, describe, draw, legend = []) {
  const canvas = el("canvas", { role: "img", "aria-label": `${title}: ${describe}` });
  const file = `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 40)}.png`;
  const save = () => opaque(canvas).toBlob((blob) => saveFile(file, blob));
  const png = button("PNG", save, { class: "small", "aria-label": `Save as a picture: ${title}` });
  const keys = legend.map((name, i) => el("span", { class: `key key-${i}` }, name));
  const element = el("figure", { class: "chart" }, el("figcaption", {}, el("span", {}, title), png), canvas, el("div", { class: "keys", hidden: !keys.length }, ...keys));
  const again = () => {
    const width = canvas.clientWidth;
    if (!width) return;
    canvas.width = width * devicePixelRatio;
    canvas.height = HEIGHT * devicePixelRatio;
    const context = canvas.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    context.clearRect(0, 0, width, HEIGHT);
    context.font = "11px system-ui, sans-serif";
    draw(context, width);
  };
  canvas.style.height = `${HEIGHT}px`;
  new ResizeObserver(again).observe(canvas);
  element.redraw = again;
  return element;
}

/** A copy of a canvas on the page's own colour, so that its text can be read wherever the picture is shown. */
function opaque(canvas) {
  const copy = el("canvas", { width: canvas.width, height: canvas.height });
  const context = copy.getContext("2d");
  context.fillStyle = colour("--paper");
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  return copy;
}

/** The least and the largest of some numbers, which may be missing. */
function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value == null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

/** A frame with ticks; returns the functions from values to pixels. Whole numbers have whole ticks. */
function axes(context, width, [left, right], [bottom, top], label, { whole = false, room = 0 } = {}) {
  const box = { x: MARGIN.left, y: MARGIN.top, w: width - MARGIN.left - MARGIN.right - room, h: HEIGHT - MARGIN.top - MARGIN.bottom };
  const x = (value) => box.x + ((value - left) / (right - left || 1)) * box.w;
  const y = (value) => box.y + box.h - ((value - bottom) / (top - bottom || 1)) * box.h;
  context.strokeStyle = colour("--line");
  context.fillStyle = colour("--muted");
  context.lineWidth = 1;
  context.strokeRect(box.x, box.y, box.w, box.h);
  context.textAlign = "right";
  context.textBaseline = "middle";
  const ticks = whole ? [bottom + 0.5, top - 0.5] : [bottom, (bottom + top) / 2, top];
  for (const value of new Set(ticks)) context.fillText(digits(value, 3), box.x - 6, y(value));
  context.textBaseline = "top";
  context.textAlign = "left";
  context.fillText(digits(left, 6), box.x, box.y + box.h + 5);
  context.textAlign = "right";
  context.fillText(digits(right, 6), box.x + box.w, box.y + box.h + 5);
  context.textAlign = "center";
  context.fillText(label, box.x + box.w / 2, box.y + box.h + 5);
  return { x, y, box };
}

/**
 * Lines over x. `series` is [{name, y, share, x}]: `share` is the colour's place in [0, 1], without it the lines are told apart by
 * colour and dashes; a line may have its own x. `band` is {low, high}. The first values of a training may lie far outside; with
 * `settled` they do not set the scale. `beside` are values that the scale spans as well.
 */
export function lineChart(title, x, series, { label = "iteration", band = null, settled = false, beside = [] } = {}) {
  const heard = (line) => (settled ? line.y.slice(Math.floor(line.y.length / 20)) : line.y);
  const [low, high] = range([...series.flatMap(heard), ...(band ? [...band.low, ...band.high] : []), ...beside]);
  const pad = 0.05 * (high - low || 1);
  const ends = series.map((line) => `${line.name} ends at ${digits(lastOf(line.y), 3)}`).slice(0, 3);
  const legend = series.length === 2 ? series.map((line) => line.name) : [];
  const draw = (context, width) => {
    const across = range(series.flatMap((line) => line.x ?? x));
    const at = axes(context, width, across, [low - pad, high + pad], label);
    context.save();
    context.beginPath();
    context.rect(at.box.x, at.box.y, at.box.w, at.box.h);
    context.clip();
    if (band) fillBand(context, at, x, band);
    series.forEach((line, i) => drawLine(context, at, line.x ?? x, line, i));
    context.restore();
  };
  return figure(title, ends.join(", "), draw, legend);
}

function drawLine(context, at, x, line, i) {
  const [name, dashes] = LINES[i % LINES.length];
  context.strokeStyle = line.share == null ? colour(name) : css(VIRIDIS, 0.1 + 0.75 * line.share);
  context.setLineDash(line.share == null ? dashes : []);
  context.lineWidth = 1.8;
  context.beginPath();
  let open = false;
  line.y.forEach((value, n) => {
    if (value == null) return (open = false);
    if (open) context.lineTo(at.x(x[n]), at.y(value));
    else context.moveTo(at.x(x[n]), at.y(value));
    open = true;
    return open;
  });
  context.stroke();
  context.setLineDash([]);
  if (line.y.length < 30) line.y.forEach((value, n) => value != null && dot(context, at.x(x[n]), at.y(value)));
}

function dot(context, x, y) {
  context.fillStyle = context.strokeStyle;
  context.beginPath();
  context.arc(x, y, 2.4, 0, 2 * Math.PI);
  context.fill();
}

function fillBand(context, at, x, { low, high }) {
  context.fillStyle = colour("--muted");
  context.globalAlpha = 0.18;
  context.beginPath();
  x.forEach((value, i) => context.lineTo(at.x(value), at.y(high[i])));
  [...x.keys()].reverse().forEach((i) => context.lineTo(at.x(x[i]), at.y(low[i])));
  context.fill();
  context.globalAlpha = 1;
}

function lastOf(values) {
  return values.findLast((value) => value != null);
}

/**
 * A quantity of every level over the iterations. Colours go from `from` to `to`, else over the values and over those `beside`;
 * where they have a `middle`, that is white. Quantities of both signs have their zero there.
 */
export function heatChart(title, iterations, levels, table, { from = null, to = null, middle = null, beside = [] } = {}) {
  const sorted = [...table.flat(), ...beside].filter((value) => value != null).sort((a, b) => a - b);
  if (middle == null && sorted[0] < 0 && sorted[sorted.length - 1] > 0) middle = 0;
  // The few wildest values of the first iterations would leave no colours for the rest.
  const quantile = (share) => sorted[Math.round(share * (sorted.length - 1))];
  let [low, high] = [from ?? quantile(0.02) ?? 0, to ?? quantile(0.98) ?? 1];
  if (middle != null) {
    const reach = Math.max(middle - low, high - middle);
    [low, high] = [middle - reach, middle + reach];
  }
  const map = middle == null ? VIRIDIS : SIGNS;
  const describe = `${levels.length} levels over ${iterations.length} lines of the log, from ${digits(low, 3)} to ${digits(high, 3)}`;
  return figure(title, describe, (context, width) => {
    const [first, last] = [levels[0] ?? 0, levels[levels.length - 1] ?? 0];
    const room = SCALE.gap + SCALE.width + SCALE.text - MARGIN.right;
    const at = axes(context, width, range(iterations), [first - 0.5, last + 0.5], "iteration", { whole: true, room });
    const picture = new OffscreenCanvas(Math.max(1, iterations.length), Math.max(1, levels.length));
    const image = new ImageData(picture.width, picture.height);
    table.forEach((row, i) =>
      row.forEach((value, t) => {
        if (value == null) return;
        paint(map, (value - low) / (high - low || 1), image.data, 4 * ((levels.length - 1 - t) * picture.width + i));
      }),
    );
    picture.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(picture, at.box.x, at.box.y, at.box.w, at.box.h);
    colourScale(context, at.box, map, low, high);
  });
}

/** What the colours stand for, beside a heat map. */
function colourScale(context, box, map, low, high) {
  const x = box.x + box.w + SCALE.gap;
  for (let i = 0; i < box.h; i++) {
    context.fillStyle = css(map, 1 - (i + 0.5) / box.h);
    context.fillRect(x, box.y + i, SCALE.width, 1.5);
  }
  context.fillStyle = colour("--muted");
  context.textAlign = "left";
  for (const [share, baseline] of [[0, "bottom"], [0.5, "middle"], [1, "top"]]) {
    context.textBaseline = baseline;
    context.fillText(digits(low + share * (high - low), 2), x + SCALE.width + 4, box.y + (1 - share) * box.h);
  }
}
