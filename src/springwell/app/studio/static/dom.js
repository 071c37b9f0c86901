// Elements and controls. Every control has a label that says what it does.

let numbers = 0;

/** An element: el("p", {class: "note"}, "text", child). Attributes that begin with "on" are listeners. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** A labelled row of a control panel. */
function row(label, control, value) {
  control.id ||= `control-${++numbers}`;
  return el("div", { class: "row" }, el("label", { for: control.id }, label), control, value ?? null);
}

/** A slider. `log` spaces its positions evenly in the logarithm; `shown` makes the text beside it. */
export function slider(label, { min, max, value, step = 1, log = false, shown = String, oninput = () => {} }) {
  const inner = log ? { min: 0, max: 200, step: 1 } : { min, max, step };
  const input = el("input", { type: "range", ...inner });
  const output = el("output", { for: input.id });
  const read = () => (log ? min * (max / min) ** (input.value / 200) : Number(input.value));
  const write = (number) => (input.value = log ? (200 * Math.log(number / min)) / Math.log(max / min) : number);
  const show = () => {
    output.textContent = shown(read());
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    show();
    oninput(read());
  });
  const made = {
    element: row(label, input, output),
    input,
    get value() {
      return read();
    },
    set value(number) {
      write(number);
      show();
    },
    range(least, most) {
      input.min = least;
      input.max = most;
      show();
    },
  };
  made.value = value;
  return made;
}

/** A list to choose from; choices are [value, text]. */
export function select(label, choices, onchange = () => {}) {
  const input = el("select", { onchange: () => onchange(input.value) });
  const made = {
    element: row(label, input),
    input,
    fill(pairs) {
      const before = input.value;
      input.replaceChildren(...pairs.map(([value, text]) => el("option", { value }, text)));
      if (pairs.some(([value]) => value === before)) input.value = before;
    },
    get value() {
      return input.value;
    },
    set value(value) {
      input.value = value;
    },
  };
  made.fill(choices);
  return made;
}

export function checkbox(label, checked, onchange = () => {}) {
  const input = el("input", { type: "checkbox", id: `control-${++numbers}` });
  input.checked = checked;
  input.addEventListener("change", () => onchange(input.checked));
  return { element: el("div", { class: "check" }, input, el("label", { for: input.id }, label)), input };
}

export function number(label, value, { min = 0, max = 2 ** 31 - 1, onchange = () => {} } = {}) {
  const input = el("input", { type: "number", min, max, value, inputmode: "numeric" });
  const read = () => Math.max(min, Math.min(max, Math.round(Number(input.value) || 0)));
  input.addEventListener("change", () => {
    input.value = read();
    onchange(read());
  });
  return { element: row(label, input), input, get value() { return read(); }, set value(v) { input.value = v; } };
}

/** A group of controls with a heading. */
export function group(title, ...children) {
  return el("fieldset", {}, el("legend", {}, title), ...children);
}

/** Buttons of which one is pressed; choices are [value, text]. */
export function segments(label, choices, onchange) {
  const buttons = choices.map(([value, text]) =>
    button(text, () => made.choose(value), { "aria-pressed": "false", "data-value": value }),
  );
  const element = el("div", { class: "segments", role: "group", "aria-label": label }, ...buttons);
  const made = {
    element,
    value: null,
    choose(value) {
      made.value = value;
      for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.value === value));
      onchange(value);
    },
  };
  return made;
}

/** A file field with a label, which is also a place to drop a file on. */
export function dropField(label, onfile, accept = "image/*") {
  const input = el("input", { type: "file", accept, id: `control-${++numbers}` });
  const element = el("div", { class: "drop" }, el("label", { for: input.id }, label), input);
  input.addEventListener("change", () => {
    if (input.files[0]) onfile(input.files[0]);
    input.value = "";
  });
  acceptDrops(element, onfile);
  return element;
}

/** Makes an element a place to drop a file on. */
export function acceptDrops(element, onfile) {
  element.addEventListener("dragover", (event) => {
    event.preventDefault();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    element.classList.remove("over");
    if (event.dataTransfer.files[0]) onfile(event.dataTransfer.files[0]);
  });
}

/** Saves bytes or a text as a file. */
export function saveFile(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** An array of 32-bit floats, {data, shape}, as a .npy file: its first bytes, a header of 118, then the numbers. */
export function npy({ data, shape }) {
  const header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${shape.join(", ")},), }`.padEnd(117) + "\n";
  return new Blob([Uint8Array.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, 118, 0]), header, data]);
}

/** A number in few digits. */
export function digits(value, places = 3) {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(places - 1) : String(Number(value.toPrecision(places)));
}
