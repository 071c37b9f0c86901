// One run: facts, curves, heat maps, previews, card. The Runs page and `springwell report` share it.

import { heatChart, lineChart } from "./charts.js";
import { button, digits, el, saveFile } from "./dom.js";

const TITLES = {
  loss: "Loss",
  f_gap: "f gap, data less chains (nats)",
  acceptance: "Acceptance",
  step_size: "Step size",
  displacement: "Distance that chains move",
  score_error: "Error of the score",
  noise_error: "Error of the noise",
  excess: "Excess",
  calibration: "Calibration (1 is exact)",
};
// What a heat map's colours span, where that is not what the values span: an interval, or a middle.
const SPANS = { acceptance: { from: 0, to: 1 }, calibration: { middle: 1 } };

const LEFT_OUT = ["iteration", "seed"];
const QUALITY = ["fid", "kid", "precision", "recall"];

/** The elements of a run; `picture(file)` is the address of one of its pictures. */
export function runDetail(run, picture) {
  const state = run.finished ? "finished" : `iteration ${run.iteration} of ${run.iterations ?? "?"}`;
  const facts = [
    ["State", state],
    ["Shape of a sample", run.shape.join(" x ") || "not known yet"],
    ...QUALITY.filter((key) => run.quality[key] != null).map((key) => [key, qualityText(run.quality, key)]),
    ...Object.entries(run.evaluation).filter(([key, value]) => typeof value === "number" && !LEFT_OUT.includes(key)).slice(0, 12).map(([key, value]) => [key, digits(value, 4)]),
    ...Object.entries(run.likelihood).filter(([key, value]) => typeof value === "number" && /^(bits|log_z)/.test(key)).map(([key, value]) => [key, digits(value, 6)]),
  ];
  return el(
    "article",
    { class: "run", "aria-label": run.title },
    el("h2", {}, run.title),
    el("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    run.command ? el("pre", { tabindex: 0 }, run.command) : null,
    curves(run),
    previews(run, picture),
    run.card ? details("Card", cardElement(run.card)) : null,
    details("Configuration", configuration(run.config)),
  );
}

function qualityText(quality, key) {
  return `${digits(quality[key], 4)} (${quality.num_samples} samples, ${quality.num_reference} reference images)`;
}

/** Every quantity of the log as a table: iteration, level, then a column for each. */
function curvesFile({ iteration, levels, tables }) {
  const names = Object.keys(tables);
  const rows = iteration.flatMap((i, line) => levels.map((level, t) => [i, level, ...names.map((name) => tables[name][line][t] ?? "")].join(",")));
  return [["iteration", "level", ...names].join(","), ...rows].join("\n") + "\n";
}

function details(title, body) {
  return el("details", {}, el("summary", {}, title), body);
}

function curves(run) {
  const { iteration, levels, tables } = run.metrics;
  const charts = [];
  if (iteration.length && tables.loss) {
    const mean = tables.loss.map((row) => meanOf(row));
    charts.push(lineChart("Loss, mean over the levels", iteration, [{ name: "loss", y: mean }]));
  }
  if (run.fid.length) {
    const last = run.fid[run.fid.length - 1];
    const same = run.fid.filter((line) => line.num_samples === last.num_samples);
    const title = `FID of ${last.num_samples ?? "?"} samples`;
    charts.push(lineChart(title, same.map((line) => line.iteration), [{ name: "FID", y: same.map((line) => line.fid ?? null) }]));
  }
  for (const [name, table] of Object.entries(tables)) {
    const varies = table.some((row) => row.some((value) => value !== row[0])) || table.some((row) => row[0] !== table[0][0]);
    if (levels.length > 1 && varies) charts.push(heatChart(`${TITLES[name] ?? name}, level over iteration`, iteration, levels, table, SPANS[name]));
  }
  const { calibration, calibration_levels: at, acceptance, f_gap_levels: gaps } = run.evaluation;
  if (calibration?.length) charts.push(lineChart("Calibration of each level (1 is exact)", at, [{ name: "calibration", y: calibration }], { label: "level" }));
  if (acceptance?.length > 1) charts.push(lineChart("Acceptance when sampling", acceptance.map((_, t) => t), [{ name: "acceptance", y: acceptance }], { label: "level" }));
  if (gaps?.length > 1) charts.push(lineChart("f gap of each level, data less samples (nats)", gaps.map((_, t) => t), [{ name: "f gap", y: gaps }], { label: "level" }));
  if (!charts.length) return el("p", { class: "muted" }, "There are no curves yet.");
  const file = button("Curves (CSV)", () => saveFile("curves.csv", curvesFile(run.metrics), "text/csv"));
  return el("section", { "aria-label": "Curves" }, el("h3", {}, "Curves"), el("div", { class: "charts" }, ...charts), file);
}

function meanOf(row) {
  const known = row.filter((value) => value != null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** The pictures that were made while training, with a slider over time; else the picture of the finished model. */
function previews(run, picture) {
  const files = run.previews.length ? run.previews : run.pictures;
  if (!files.length) return null;
  const image = el("img", { alt: "", loading: "lazy" });
  const caption = el("figcaption", {});
  const show = (i) => {
    const iteration = /^\d+/.exec(files[i])?.[0];
    const text = iteration ? `Preview at iteration ${Number(iteration)}` : "Picture of the model";
    image.src = picture(files[i]);
    image.alt = text;
    caption.textContent = text;
  };
  const input = el("input", { type: "range", min: 0, max: files.length - 1, value: files.length - 1, "aria-label": "Preview" });
  input.addEventListener("input", () => show(Number(input.value)));
  show(files.length - 1);
  return el("section", {}, el("h3", {}, "Previews"), files.length > 1 ? input : null, el("figure", {}, image, caption));
}

function configuration(config) {
  const rows = Object.entries(config).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  return el("dl", { class: "facts" }, ...rows);
}

/** A card's Markdown as elements: headings, lists, tables, code and paragraphs. Text stays text. */
function cardElement(text) {
  const blocks = text.split(/\n{2,}(?=[^\s])/);
  return el("div", { class: "card" }, ...blocks.map(cardBlock));
}

function cardBlock(block) {
  const heading = /^#+\s+(.*)/.exec(block);
  if (heading) {
    const rest = block.split("\n").slice(1).join("\n").trim();
    return el("div", {}, el("h4", {}, heading[1]), rest ? cardBlock(rest) : null);
  }
  if (block.startsWith("```")) return el("pre", { tabindex: 0 }, block.replace(/^```\w*\n?|```\s*$/g, ""));
  const lines = block.split("\n");
  if (lines.every((line) => line.startsWith("|"))) {
    const rows = lines.filter((line) => !/^[|\s:-]+$/.test(line)).map((line) => line.split("|").slice(1, -1));
    return el("table", {}, ...rows.map((cells, i) => el("tr", {}, ...cells.map((cell) => el(i ? "td" : "th", {}, plain(cell.trim()))))));
  }
  if (lines[0].startsWith("- ")) {
    const items = block.split(/\n(?=- )/).map((item) => item.slice(2));
    return el("ul", {}, ...items.map((item) => el("li", {}, plain(item))));
  }
  return el("p", {}, plain(block));
}

/** Text without the marks of Markdown. */
function plain(text) {
  return text.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/[`*]/g, "");
}
