// Messages between the page and the server: a JSON header, then arrays. The server's half is wire.py.

const KINDS = { uint8: Uint8Array, int32: Int32Array, float32: Float32Array };

/** The frame of a header and its arrays, {name: {data, shape}}. */
export function pack(header, arrays = {}) {
  const listed = Object.entries(arrays).map(([name, { data, shape }]) => {
    const kind = Object.keys(KINDS).find((key) => data instanceof KINDS[key]);
    return [name, kind, shape];
  });
  const text = new TextEncoder().encode(JSON.stringify({ ...header, arrays: listed }));
  const parts = Object.values(arrays).map(({ data }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  const frame = new Uint8Array(4 + text.length + parts.reduce((sum, part) => sum + part.length, 0));
  new DataView(frame.buffer).setUint32(0, text.length, true);
  frame.set(text, 4);
  let at = 4 + text.length;
  for (const part of parts) {
    frame.set(part, at);
    at += part.length;
  }
  return frame;
}

/** The header and the arrays of a frame (an ArrayBuffer). */
export function unpack(frame) {
  const length = new DataView(frame).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(frame, 4, length)));
  const arrays = {};
  let at = 4 + length;
  for (const [name, kind, shape] of header.arrays) {
    const size = shape.reduce((product, side) => product * side, 1) * KINDS[kind].BYTES_PER_ELEMENT;
    // A copy, because typed arrays need their first byte at a multiple of their size.
    arrays[name] = { data: new KINDS[kind](frame.slice(at, at + size)), shape };
    at += size;
  }
  return { header, arrays };
}
