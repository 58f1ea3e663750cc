// gpumem.v1 as docs/wire.md says it: keyframes are deflated JSON, deltas are varints.
const KEYFRAME = 0;
const DELTA = 1;
const HEAD_BYTES = 17;

export const isKeyframe = (payload) => payload[0] === KEYFRAME;

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// What a keyframe's payload unpacks to, still as bytes: inflating is the browser's work, off this thread.
export const unpackKeyframe = (payload) => inflate(payload.subarray(1));

export function readKeyframe(bytes) {
  const frame = JSON.parse(new TextDecoder().decode(bytes));
  if (frame.v !== "gpumem.v1") throw new Error(`not gpumem.v1 but ${frame.v}`);
  return frame;
}

export function readDeltaHead(payload) {
  if (payload[0] !== DELTA || payload.length < HEAD_BYTES) throw new Error("not a delta");
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  return { epoch: view.getUint32(1, true), seq: view.getUint32(5, true), at: view.getFloat64(9, true) };
}

// Adds the delta's changes to `values` (MiB by segment ordinal); returns how many there were.
export function applyDelta(payload, values) {
  const size = payload.length;
  let place = HEAD_BYTES;
  let ordinal = -1;
  let changes = 0;
  while (place < size) {
    let gap = 0;
    let shift = 1;
    let byte;
    do {
      byte = payload[place++];
      gap += (byte & 0x7f) * shift;
      shift *= 128;
    } while (byte & 0x80 && place < size);
    let zigzag = 0;
    shift = 1;
    do {
      byte = payload[place++];
      zigzag += (byte & 0x7f) * shift;
      shift *= 128;
    } while (byte & 0x80 && place < size);
    ordinal += gap;
    if (ordinal >= values.length) throw new Error("a delta of another topology");
    values[ordinal] += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
    changes += 1;
  }
  return changes;
}
