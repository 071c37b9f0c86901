// Charts on canvases: lines, and tables of levels over iterations as heat maps. Colours are the page's own.

import { SIGNS, VIRIDIS, css, paint } from "./colours.js";
import { digits, el } from "./dom.js";

const HEIGHT = 170;
const MARGIN = { left: 52, right: 12, top: 8, bottom: 32 };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A figure with a canvas that is drawn again whenever its size changes. */
function figure(title, describe, draw) {
  const canvas = el("canvas", { role: "img", "aria-label": `${title}: ${describe}` });
  const element = el("figure", { class: "chart" }, el("figcaption", {}, title), canvas);
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

/** A frame with ticks; returns the functions from values to pixels. */
function axes(context, width, [left, right], [bottom, top], labels) {
  const box = { x: MARGIN.left, y: MARGIN.top, w: width - MARGIN.left - MARGIN.right, h: HEIGHT - MARGIN.top - MARGIN.bottom };
  const x = (value) => box.x + ((value - left) / (right - left || 1)) * box.w;
  const y = (value) => box.y + box.h - ((value - bottom) / (top - bottom || 1)) * box.h;
  context.strokeStyle = colour("--line");
  context.fillStyle = colour("--muted");
  context.lineWidth = 1;
  context.strokeRect(box.x, box.y, box.w, box.h);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of [bottom, (bottom + top) / 2, top]) context.fillText(digits(value, 3), box.x - 6, y(value));
  context.textBaseline = "top";
  context.textAlign = "left";
  context.fillText(digits(left, 4), box.x, box.y + box.h + 5);
  context.textAlign = "right";
  context.fillText(digits(right, 4), box.x + box.w, box.y + box.h + 5);
  context.textAlign = "center";
  context.fillText(labels, box.x + box.w / 2, box.y + box.h + 5);
  return { x, y, box };
}

/** Lines over x. `series` is [{name, y, share}], with the colour's share in [0, 1]; `band` is {low, high}. */
export function lineChart(title, x, series, { label = "iteration", band = null } = {}) {
  const values = [...series.flatMap((line) => line.y), ...(band ? [...band.low, ...band.high] : [])];
  const [low, high] = range(values);
  const pad = 0.05 * (high - low || 1);
  const ends = series.map((line) => `${line.name} ends at ${digits(lastOf(line.y), 3)}`).slice(0, 3);
  return figure(title, ends.join(", "), (context, width) => {
    const at = axes(context, width, range(x), [low - pad, high + pad], label);
    if (band) fillBand(context, at, x, band);
    series.forEach((line) => {
      context.strokeStyle = line.share == null ? colour("--accent") : css(VIRIDIS, 0.1 + 0.75 * line.share);
      context.lineWidth = 1.8;
      context.beginPath();
      let open = false;
      line.y.forEach((value, i) => {
        if (value == null) return (open = false);
        if (open) context.lineTo(at.x(x[i]), at.y(value));
        else context.moveTo(at.x(x[i]), at.y(value));
        open = true;
        return open;
      });
      context.stroke();
      if (line.y.length < 30) line.y.forEach((value, i) => value != null && dot(context, at.x(x[i]), at.y(value)));
    });
  });
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
 * A quantity of every level over the iterations. Colours go from `from` to `to`, else over the values; where they have a
 * `middle`, that is white. Quantities of both signs have their zero there.
 */
export function heatChart(title, iterations, levels, table, { from = null, to = null, middle = null } = {}) {
  const sorted = table.flat().filter((value) => value != null).sort((a, b) => a - b);
  if (middle == null && sorted[0] < 0 && sorted[sorted.length - 1] > 0) middle = 0;
  const signed = middle != null;
  // The few wildest values of the first iterations would leave no colours for the rest.
  const quantile = (share) => sorted[Math.round(share * (sorted.length - 1))];
  let [low, high] = [from ?? quantile(0.02) ?? 0, to ?? quantile(0.98) ?? 1];
  if (signed) {
    const reach = Math.max(middle - low, high - middle);
    [low, high] = [middle - reach, middle + reach];
  }
  const map = signed ? SIGNS : VIRIDIS;
  const caption = `${title}: ${digits(low, 3)} (${signed ? "brown" : "dark"}) to ${digits(high, 3)} (${signed ? "violet" : "bright"})`;
  return figure(caption, `${levels.length} levels over ${iterations.length} lines of the log`, (context, width) => {
    const top = levels[levels.length - 1] ?? 0;
    const at = axes(context, width, range(iterations), [levels[0] ?? 0, top], "iteration");
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
  });
}
