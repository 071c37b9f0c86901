// The class of a model that knows classes, and how strongly it guides. Models that know none do not show it.

import { digits, el, select, slider } from "./dom.js";

export class Classes {
  /** `changed` is called when another class or another weight was chosen. */
  constructor(changed = () => {}) {
    this.label = select("Class", [], () => this.choose(changed));
    this.guidance = slider("Guidance", { min: 0, max: 8, step: 0.25, value: 1, shown: (w) => digits(w, 3) });
    this.guidance.input.addEventListener("change", changed);
    this.element = el("div", { hidden: true }, this.label.element, this.guidance.element);
    this.names = [];
  }

  /** Takes the names of a model's classes. */
  set(names) {
    if (String(names) === String(this.names)) return;
    this.names = names;
    this.label.fill([["", "all data"], ...names.map((name) => [name, name])]);
    this.label.value = "";
    this.show();
  }

  choose(changed) {
    this.show();
    changed();
  }

  show() {
    this.element.hidden = !this.names.length;
    this.guidance.element.hidden = !this.label.value;
  }

  /** What jobs need to know: {label, guidance}, or nothing. */
  get options() {
    return this.label.value ? { label: this.label.value, guidance: this.guidance.value } : {};
  }

  /** Shows what a job was asked for. */
  set options({ label = "", guidance = 1 }) {
    this.label.value = label;
    this.guidance.value = guidance;
    this.show();
  }
}
