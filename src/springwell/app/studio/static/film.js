// Films of what moves: pictures that the page draws, which the server makes a GIF of.

import { el, saveFile } from "./dom.js";

// What one message may hold.
const MOST_BYTES = 30 << 20;
export const MOST_PICTURES = 100;

/** Saves a GIF. `paint(canvas, i)` draws the i-th of `count` pictures, all of the same size. */
export async function saveFilm(link, model, name, count, paint) {
  const canvas = el("canvas", {});
  paint(canvas, 0);
  const { width, height } = canvas;
  const shown = Math.max(1, Math.min(count, MOST_PICTURES, Math.floor(MOST_BYTES / (3 * width * height))));
  const data = new Uint8Array(shown * height * width * 3);
  for (let n = 0, to = 0; n < shown; n++) {
    paint(canvas, shown > 1 ? Math.round((n * (count - 1)) / (shown - 1)) : 0);
    const bytes = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    for (let i = 0; i < bytes.length; i += 4) for (let c = 0; c < 3; c++) data[to++] = bytes[i + c];
  }
  const { arrays } = await link.ask("film", model, {}, { frames: { data, shape: [shown, height, width, 3] } });
  saveFile(name, arrays.file.data, "image/gif");
}
