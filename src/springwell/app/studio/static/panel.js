// What every job shows: how far it is, a way to cancel it, what went wrong, its files, and how to make it again.

import { button, el } from "./dom.js";

/** The panel of the jobs of one tool. `files` are the names of a finished job's files. */
export class Panel {
  constructor(link, files, title) {
    this.link = link;
    this.files = files;
    this.bar = el("progress", { max: 1, value: 0, "aria-label": "progress" });
    this.text = el("span", { class: "muted" });
    this.cancel = button("Cancel", () => this.link.cancel(this.job));
    this.running = el("div", { class: "running", hidden: true }, this.bar, this.text, this.cancel);
    this.notes = el("div", { role: "status", "aria-live": "polite" });
    this.links = el("div", { class: "files", hidden: true });
    this.recipe = recipeBox(title);
    this.element = el("div", { class: "panel" }, this.running, this.notes, this.links, this.recipe.element);
  }

  /** Shows a message of a job; returns whether it was one of those that this panel knows. */
  hear(job, header) {
    if (header.event === "started") {
      this.job = job;
      this.notes.replaceChildren();
      this.links.hidden = true;
      this.recipe.show(null);
      this.show(0, 1, "starting");
    } else if (header.event === "waiting") this.show(0, 1, `waiting for ${header.before} other job${header.before > 1 ? "s" : ""} of this model`);
    else if (header.event === "progress") this.show(header.done, header.total, `${header.done} of ${header.total} ${header.what}`);
    else if (header.event === "warning") this.note(header.text, "warning");
    else if (["done", "failed", "cancelled"].includes(header.event)) this.end(job, header);
    else return false;
    return true;
  }

  show(done, total, text) {
    this.running.hidden = false;
    this.bar.value = done / Math.max(1, total);
    this.text.textContent = text;
  }

  end(job, header) {
    this.running.hidden = true;
    if (header.event === "failed") this.note(header.text, "error");
    if (header.event === "cancelled") this.note("Cancelled.", "muted");
    if (header.event === "done") {
      const made = this.files.map((name) => el("a", { href: this.link.file(job, name), download: name }, name));
      this.links.replaceChildren(el("span", { class: "muted" }, "Download "), ...made);
      this.links.hidden = !made.length;
      this.recipe.show(header.recipe);
    }
  }

  note(text, kind) {
    this.notes.append(el("p", { class: kind }, text));
  }
}

/** The command and the Python lines that make a result again, with buttons that copy them. */
export function recipeBox(title = "Make it again") {
  const element = el("details", { class: "recipe", hidden: true }, el("summary", {}, title));
  const body = el("div", {});
  element.append(body);
  return {
    element,
    show(recipe) {
      element.hidden = !recipe;
      if (!recipe) return;
      const parts = [["Command", recipe.command], ["Python", recipe.python]].filter(([, text]) => text);
      body.replaceChildren(...parts.flatMap(([title, text]) => [copyHead(title, text), el("pre", { tabindex: 0 }, text)]));
    },
  };
}

function copyHead(title, text) {
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  return el("div", { class: "copy" }, el("h4", {}, title), copy);
}
