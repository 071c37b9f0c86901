// The Runs page: every run and every model that ships; one or two side by side; live while training.

import { el, select } from "./dom.js";
import { compared, runDetail } from "./rundetail.js";

const EVERY = 2000;

export class Runs {
  constructor(root) {
    this.first = select("Run", [], () => this.load());
    this.second = select("Compare with", [["", "nothing"]], () => this.load());
    this.first.input.id = "runs-first";
    this.second.input.id = "runs-second";
    for (const one of [this.first, this.second]) one.element.querySelector("label").htmlFor = one.input.id;
    this.status = el("p", { class: "muted", role: "status" });
    this.body = el("div", { class: "runs" });
    root.append(el("div", { class: "picker" }, this.first.element, this.second.element), this.status, this.body);
    this.known = {};
    setInterval(() => this.visible && this.live && this.load(), EVERY);
  }

  setModels(models) {
    const chosen = this.first.value;
    const listed = models.map((model) => [model.name, `${model.title}${model.ships ? "" : model.finished ? " (finished)" : " (not finished)"}`]);
    this.first.fill(listed);
    this.second.fill([["", "nothing"], ...listed]);
    if (!chosen && this.visible) this.load();
  }

  setVisible(visible) {
    this.visible = visible;
    if (visible && this.first.value) this.load();
  }

  recolour() {
    for (const chart of this.body.querySelectorAll(".chart")) chart.redraw();
  }

  async load() {
    const names = [this.first.value, this.second.value].filter(Boolean);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const runs = await Promise.all(names.map((name) => fetchRun(name)));
      // Another choice was made while this one was on its way.
      if (turn !== this.turn) return;
      this.status.textContent = "";
      const text = JSON.stringify(runs);
      this.live = runs.some((run) => !run.finished);
      // Nothing is drawn again while nothing changed, so that a reader keeps the place.
      if (text === this.text) return;
      this.text = text;
      const open = [...this.body.querySelectorAll("details")].map((one) => one.open);
      const pair = runs.length === 2 ? [compared(runs)] : [];
      this.body.replaceChildren(...pair, ...runs.map((run, i) => withReport(run, runs[1 - i])));
      [...this.body.querySelectorAll("details")].forEach((one, i) => (one.open = open[i] ?? false));
    } catch (error) {
      if (turn === this.turn) this.status.textContent = error.message;
    }
  }
}

async function fetchRun(name) {
  const answer = await fetch(`/run?${new URLSearchParams({ name })}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** A run, with links to its page and its model as files; its charts have the scales of another run, if there is one. */
function withReport(run, beside) {
  const article = runDetail(run, (file) => pictureAddress(run.name, file), beside);
  const address = `/report?${new URLSearchParams({ name: run.name })}`;
  const link = el("a", { href: address, download: "report.html" }, "report.html");
  const model = el("a", { href: `/model?${new URLSearchParams({ name: run.name })}`, download: `${run.title.split("/").pop()}.zip` }, "model (ZIP)");
  const files = ["This page as one file: ", link, `, or springwell report ${run.name}. `, "Download the ", model, "."];
  article.querySelector("h2").after(el("p", { class: "muted" }, ...files));
  return article;
}

function pictureAddress(name, file) {
  return `/preview?${new URLSearchParams({ name, file })}`;
}
