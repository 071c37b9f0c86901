// The density of an image: its rank among test images, its profile over the levels, and where the score is large.

import { lineChart } from "./charts.js";
import { VIRIDIS, paint } from "./colours.js";
import { button, digits, el, group } from "./dom.js";
import { Panel } from "./panel.js";
import { drawImage } from "./sheet.js";

export class Score {
  constructor(page) {
    this.page = page;
    this.panel = new Panel(page.link, ["score.png", "score.csv", "score.npz", "image.png", "image.npz"]);
    this.canvas = el("canvas", { class: "sheet", role: "img", "aria-label": "The image" });
    this.facts = el("dl", { class: "facts", id: "score-facts" });
    this.maps = el("div", { class: "pictures" });
    this.mapsTitle = el("h3", { hidden: true }, "Where the score is large");
    this.chart = el("div", {});
    this.hint = el("p", { class: "muted" }, "Choose an image, or drop a file here, and score it.");
    this.stage = el("div", {}, this.hint, el("div", { class: "pictures" }, el("figure", {}, this.canvas), this.facts), this.chart, this.mapsTitle, this.maps);
    const start = button("Score it", () => this.start(), { class: "primary", id: "score" });
    this.controls = el("div", {}, group("Score", el("div", { class: "buttons" }, start)), this.panel.element);
    page.onImage((image) => this.take(image));
    page.link.on("score", (job, header, arrays) => this.hear(job, header, arrays));
  }

  take(image) {
    this.image = image;
    this.canvas.width = 0;
    this.facts.replaceChildren();
    this.maps.replaceChildren();
    this.mapsTitle.hidden = true;
    this.chart.replaceChildren();
    if (image) drawImage(this.canvas, image, 140);
  }

  start() {
    if (!this.image) {
      this.hint.textContent = "Choose an image first: draw samples, take a test image or drop a file.";
      return;
    }
    this.page.start("score", { seed: 0 }, { image: this.image });
  }

  hear(job, header, arrays) {
    if (header.event === "started") {
      this.job = job;
      this.page.resume(job);
    }
    if (job !== this.job || this.panel.hear(job, header) || header.event !== "scored") return;
    this.showFacts(header);
    this.showProfile(header);
    this.showMaps(header.map_levels, arrays.maps);
  }

  /** The profile over the levels; where test images are known, less their median, because levels differ by hundreds of nats. */
  showProfile({ levels, profile, reference, reference_low: low, reference_high: high }) {
    const less = (values) => values.map((value, i) => (value == null ? null : value - (reference?.[i] ?? 0)));
    const band = reference ? { low: less(low), high: less(high) } : null;
    const title = reference
      ? "Log-density of each level, less the median of test images (nats); grey: 5 % to 95 % of them"
      : "Log-density of each level, up to a constant (nats)";
    this.chart.replaceChildren(lineChart(title, levels, [{ name: "this image", y: less(profile) }], { label: "level", band }));
  }

  showFacts(header) {
    const kind = header.normalised ? `log-density (log Z: ${header.verdict})` : "f, the log-density up to a constant";
    const rank = header.percentile == null ? header.why : `higher than ${digits(header.percentile, 3)} % of ${header.num_reference} test images`;
    const likely = header.classes.slice(0, 3).map(([name, share]) => `${name} (${digits(100 * share, 3)} %)`).join(", ");
    const rows = [["Value", `${digits(header.value, 5)} nats, ${kind}`], ["Rank", rank], ...(likely ? [["Class", `${likely}, if all classes are equally frequent`]] : [])];
    this.facts.replaceChildren(...rows.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
  }

  /** Where a small change of the image would change its density most, at some levels. */
  showMaps(levels, { data, shape: [, height, width] }) {
    const figures = levels.map((level, n) => {
      const canvas = el("canvas", { class: "sheet", role: "img", "aria-label": `Score at level ${level}` });
      const factor = Math.max(1, Math.round(96 / Math.max(height, width)));
      const part = data.slice(n * height * width, (n + 1) * height * width);
      const largest = Math.max(...part, 1e-12);
      const image = new ImageData(width, height);
      part.forEach((value, i) => paint(VIRIDIS, value / largest, image.data, 4 * i));
      const small = new OffscreenCanvas(width, height);
      small.getContext("2d").putImageData(image, 0, 0);
      canvas.width = width * factor;
      canvas.height = height * factor;
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      context.drawImage(small, 0, 0, canvas.width, canvas.height);
      return el("figure", {}, canvas, el("figcaption", {}, `Level ${level}, up to ${digits(largest, 2)}`));
    });
    this.mapsTitle.hidden = false;
    this.maps.replaceChildren(...figures);
  }
}
