// Data that a person draws: points, strokes, or an image whose dark places are dense.

export const DRAWN_EXTENT = [-4, 4, -4, 4];
const MOST = 20000;
// Points that an image becomes, and those of a stroke for every move of the pointer.
const OF_IMAGE = 4000;
const OF_STROKE = 5;
const WIDTH = 0.12;

export class Drawing {
  constructor(changed) {
    this.changed = changed;
    this.points = [];
    this.tool = "stroke";
  }

  clear() {
    this.points = [];
    this.changed();
  }

  add(x, y) {
    if (this.points.length < MOST) this.points.push([x, y]);
  }

  /** The pointer is pressed or moved at (x, y). */
  press(x, y, first) {
    if (this.tool === "point" && first) this.add(x, y);
    if (this.tool === "stroke") for (let i = 0; i < OF_STROKE; i++) this.add(x + WIDTH * normal(), y + WIDTH * normal());
    if (this.tool === "erase") this.points = this.points.filter(([a, b]) => Math.hypot(a - x, b - y) > 0.35);
    this.changed();
  }

  /** Takes an image as a density: dark places are dense. */
  async takeImage(file) {
    const bitmap = await createImageBitmap(file);
    const side = 160;
    const canvas = new OffscreenCanvas(side, side);
    const context = canvas.getContext("2d");
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, side, side);
    const scale = side / Math.max(bitmap.width, bitmap.height);
    const [width, height] = [bitmap.width * scale, bitmap.height * scale];
    context.drawImage(bitmap, (side - width) / 2, (side - height) / 2, width, height);
    this.fillBy(context.getImageData(0, 0, side, side).data, side);
  }

  fillBy(bytes, side) {
    const sums = new Float64Array(side * side);
    let sum = 0;
    for (let i = 0; i < sums.length; i++) {
      sum += 255 - (bytes[4 * i] + bytes[4 * i + 1] + bytes[4 * i + 2]) / 3;
      sums[i] = sum;
    }
    if (!sum) throw new Error("the image is white; dark places become data");
    for (let n = 0; n < OF_IMAGE && this.points.length < MOST; n++) {
      const i = firstAbove(sums, Math.random() * sum);
      const [column, row] = [i % side, Math.floor(i / side)];
      this.add(((column + Math.random()) / side) * 6 - 3, 3 - ((row + Math.random()) / side) * 6);
    }
    this.changed();
  }

  get array() {
    return { data: new Float32Array(this.points.flat()), shape: [this.points.length, 2] };
  }

  draw(field) {
    const { context } = field;
    const size = 2.6 * devicePixelRatio;
    context.fillStyle = "rgb(255 255 255 / 0.8)";
    for (const point of this.points) {
      const [x, y] = field.place(...point);
      context.fillRect(x - size / 2, y - size / 2, size, size);
    }
  }
}

/** The first position whose sum is above a value, by halving. */
function firstAbove(sums, value) {
  let [low, high] = [0, sums.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sums[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

function normal() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}
