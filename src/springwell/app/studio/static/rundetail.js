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

// What evaluations measure, in words; what is not listed is shown by its own name.
const FACTS = {
  initial_noise: "Noise of level 0",
  num_samples: "Samples measured",
  num_train: "Training images compared",
  f_data: "Mean f of data (nats)",
  f_samples: "Mean f of samples (nats)",
  f_gap: "f gap, data less samples (nats)",
  outside: "Values count as outside beyond",
  outside_samples: "Share of samples with one outside",
  outside_values: "Share of values outside",
  neighbour_samples: "Distance of samples to training data",
  neighbour_held_out: "Distance of held-out to training data",
  nearer_than_99_percent: "Share of samples nearer than 99 % of held-out",
  drift: "Drift of f in long chains (nats)",
  kl: "KL(data | model) (nats)",
  nll: "Cross-entropy (nats)",
  entropy: "Entropy of the data (nats)",
  tv: "Total variation",
  mmd2: "MMD², squared distance of samples",
  mmd2_null_95: "MMD² of two sets of data, 95 %",
  quadrature_mass_of_data: "Mass of the data in the window",
  modes_covered: "Modes covered",
  off_support: "Share of samples off the support",
  bits_per_dim: "Bits per dimension",
  bits_per_dim_optimistic: "Bits per dimension, at least",
  bits_per_dim_conservative: "Bits per dimension, at most",
  log_z: "log Z (nats)",
  fid: "FID",
  kid: "KID",
  precision: "Precision",
  recall: "Recall",
};
const LEFT_OUT = ["iteration", "seed"];
const QUALITY = ["fid", "kid", "precision", "recall"];
const LIKELIHOOD = ["bits_per_dim", "bits_per_dim_optimistic", "bits_per_dim_conservative", "log_z"];
const MOST_FACTS = 14;

/** The facts of a run, [name, text]: measures with their standard errors. */
function factsOf(run) {
  const state = run.finished ? "finished" : `iteration ${run.iteration} of ${run.iterations ?? "?"}`;
  const measured = Object.keys(run.evaluation).filter(
    (key) => typeof run.evaluation[key] === "number" && !LEFT_OUT.includes(key) && !/_error$/.test(key),
  );
  const verdict = run.likelihood.verdict ? [["Verdict on log Z", run.likelihood.verdict]] : [];
  return [
    ["State", state],
    ["Shape of a sample", run.shape.join(" x ") || "not known yet"],
    ...QUALITY.filter((key) => run.quality[key] != null).map((key) => [nameOf(key), qualityText(run.quality, key)]),
    ...LIKELIHOOD.filter((key) => run.likelihood[key] != null).map((key) => [nameOf(key), withError(run.likelihood, key, 5)]),
    ...verdict,
    ...measured.slice(0, MOST_FACTS).map((key) => [nameOf(key), withError(run.evaluation, key, 4)]),
  ];
}

function nameOf(key) {
  return FACTS[key] ?? key.replaceAll("_", " ");
}

function withError(values, key, places) {
  const error = values[`${key}_standard_error`] ?? values[`${key}_error`];
  return error == null ? digits(values[key], places) : `${digits(values[key], places)} ± ${digits(error, 2)}`;
}

/**
 * The elements of a run; `picture(file)` is the address of one of its pictures. Beside another run its charts have common scales,
 * and its facts are in the comparison.
 */
export function runDetail(run, picture, beside = null) {
  return el(
    "article",
    { class: "run", "aria-label": run.title },
    el("h2", {}, run.title),
    beside ? null : definitions(factsOf(run)),
    run.recipe.command ? el("pre", { tabindex: 0 }, run.recipe.command) : null,
    run.recipe.python ? details("Python", el("pre", { tabindex: 0 }, run.recipe.python)) : null,
    curves(run, beside),
    previews(run, picture),
    run.card ? details("Card", cardElement(run.card)) : null,
    details("Configuration", definitions(Object.entries(run.config))),
  );
}

/** Two runs in the same charts, and where their configurations differ. */
export function compared(runs) {
  const line = (run, { iteration, y }) => ({ name: run.title, x: iteration, y });
  const charts = [];
  const losses = runs.map((run) => line(run, { iteration: run.metrics.iteration, y: (run.metrics.tables.loss ?? []).map(meanOf) }));
  if (losses.every((one) => one.y.length)) charts.push(lineChart("Loss of both, mean over the levels", [], losses, { settled: true }));
  const fids = runs.map((run) => ({ name: run.title, ...fidOf(run) }));
  if (fids.every((one) => one.y.length)) charts.push(lineChart("FID of both", [], fids));
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
  const differ = keys.filter((key) => runs[0].config[key] !== runs[1].config[key]);
  const facts = runs.map((run) => Object.fromEntries(factsOf(run)));
  const names = [...new Set(facts.flatMap(Object.keys))];
  const head = ["", ...runs.map((run) => run.title)];
  const rows = (names, values) => names.map((name) => [name, ...runs.map((_, i) => values(i, name))]);
  const difference = tableOf(head, rows(differ, (i, name) => runs[i].config[name] ?? "–"));
  return el(
    "article",
    { class: "comparison", "aria-label": "Comparison" },
    el("h2", {}, `${runs[0].title} and ${runs[1].title}`),
    charts.length ? el("div", { class: "charts" }, ...charts) : null,
    el(
      "div",
      { class: "runs" },
      el("section", {}, el("h3", {}, "Measures"), tableOf(head, rows(names, (i, name) => facts[i][name] ?? "–"))),
      el("section", {}, el("h3", {}, "Where the configurations differ"), differ.length ? difference : el("p", { class: "muted" }, "Nowhere.")),
    ),
  );
}

function tableOf(head, rows) {
  const cells = (tag, row) => row.map((text, i) => el(i ? tag : "th", { scope: i ? null : "row" }, String(text)));
  const body = rows.map((row) => el("tr", {}, ...cells("td", row)));
  return el("div", { class: "wide", tabindex: 0 }, el("table", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text))), ...body));
}

function definitions(rows) {
  return el("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
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

/** The FIDs of a run that are of as many samples as the last one. */
function fidOf(run) {
  const last = run.fid[run.fid.length - 1];
  const same = run.fid.filter((one) => one.num_samples === last.num_samples);
  return { x: same.map((one) => one.iteration), y: same.map((one) => one.fid ?? null), of: last?.num_samples ?? "?" };
}

function curves(run, beside) {
  const { iteration, levels, tables } = run.metrics;
  const charts = [];
  const other = beside?.metrics.tables ?? {};
  if (iteration.length && tables.loss) {
    const mean = tables.loss.map(meanOf);
    charts.push(lineChart("Loss, mean over the levels", iteration, [{ name: "loss", y: mean }], { settled: true }));
  }
  if (run.fid.length) {
    const { x, y, of } = fidOf(run);
    charts.push(lineChart(`FID of ${of} samples`, x, [{ name: "FID", y }]));
  }
  for (const [name, table] of Object.entries(tables)) {
    const varies = table.some((row) => row.some((value) => value !== row[0])) || table.some((row) => row[0] !== table[0][0]);
    const spans = { ...SPANS[name], beside: (other[name] ?? []).flat() };
    if (levels.length > 1 && varies) charts.push(heatChart(`${TITLES[name] ?? name}, level over iteration`, iteration, levels, table, spans));
  }
  charts.push(...levelCharts(run.evaluation, beside?.evaluation ?? {}));
  if (!charts.length) return el("p", { class: "muted" }, "There are no curves yet.");
  const file = button("Curves (CSV)", () => saveFile("curves.csv", curvesFile(run.metrics), "text/csv"));
  return el("section", { "aria-label": "Curves" }, el("h3", {}, "Curves"), el("div", { class: "charts" }, ...charts), file);
}

/** What an evaluation measured of each level. */
function levelCharts(evaluation, other) {
  const kinds = [
    ["calibration", "Calibration of each level (1 is exact)", evaluation.calibration_levels],
    ["acceptance", "Acceptance when sampling"],
    ["f_gap_levels", "f gap of each level, data less samples (nats)"],
  ];
  const known = kinds.filter(([key]) => evaluation[key]?.length > 1);
  return known.map(([key, title, at]) => {
    const y = evaluation[key];
    return lineChart(title, at ?? y.map((_, t) => t), [{ name: title, y }], { label: "level", beside: other[key] ?? [] });
  });
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
    caption.replaceChildren(`${text} `, el("a", { href: picture(files[i]), download: files[i] }, "Download"));
  };
  const input = el("input", { type: "range", min: 0, max: files.length - 1, value: files.length - 1, "aria-label": "Preview" });
  input.addEventListener("input", () => show(Number(input.value)));
  show(files.length - 1);
  return el("section", {}, el("h3", {}, "Previews"), files.length > 1 ? input : null, el("figure", {}, image, caption));
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
