// Images, bytes [N, H, W, C], on canvases.

/** The n-th image of an array {data, shape: [N, H, W, C]}, as {data, shape: [H, W, C]}. */
export function imageAt({ data, shape }, n) {
  const size = shape[1] * shape[2] * shape[3];
  return { data: data.slice(n * size, (n + 1) * size), shape: shape.slice(1) };
}

/** An image [H, W, C] as pixels that a canvas takes. */
export function pixels({ data, shape: [height, width, channels] }) {
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = data[channels * i + (channels === 3 ? c : 0)];
    image.data[4 * i + 3] = 255;
  }
  return image;
}

/** Draws one image, magnified by a whole factor to about `side` pixels. */
export function drawImage(canvas, image, side = 64) {
  const [height, width] = image.shape;
  const factor = Math.max(1, Math.round(side / Math.max(height, width)));
  canvas.width = width * factor;
  canvas.height = height * factor;
  const small = new OffscreenCanvas(width, height);
  small.getContext("2d").putImageData(pixels(image), 0, 0);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

/** Draws images side by side. */
export function drawSheet(canvas, images, columns = Math.ceil(Math.sqrt(images.shape[0])), side = Math.max(48, Math.min(128, 520 / columns))) {
  const [count, height, width] = images.shape;
  const factor = Math.max(1, Math.round(side / Math.max(height, width)));
  const gap = 4;
  const rows = Math.ceil(count / columns);
  canvas.width = columns * (width * factor + gap) - gap;
  canvas.height = rows * (height * factor + gap) - gap;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  const small = new OffscreenCanvas(width, height);
  for (let n = 0; n < count; n++) {
    small.getContext("2d").putImageData(pixels(imageAt(images, n)), 0, 0);
    const x = (n % columns) * (width * factor + gap);
    const y = Math.floor(n / columns) * (height * factor + gap);
    context.drawImage(small, x, y, width * factor, height * factor);
  }
}
