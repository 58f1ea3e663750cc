// Frames of the channel into a tree. Gaps ask for a keyframe anew; the wait is spread out.
import { live } from "../live.js";
import { applyDelta, isKeyframe, readDeltaHead, readKeyframe, unpackKeyframe } from "./decode.js";
import { Tree } from "./tree.js";

const RESYNC_MS = 400;

export class Feed {
  // `onTree(tree)` for each keyframe, `onValues(tree, changes)` for each delta, `onState(state)`.
  constructor(scope, { onTree, onValues, onState, stats }) {
    this.scope = scope;
    this.onTree = onTree;
    this.onValues = onValues;
    this.onState = onState;
    this.stats = stats;
    this.tree = null;
    this.off = null;
    this.waiting = Promise.resolve();
    this.generation = 0;
    this.retry = 0;
  }

  start() {
    if (this.off) return;
    const generation = ++this.generation;
    this.tree = null;
    this.off = live("gpumem", this.scope, {
      onFrame: (payload) => this.#queue(payload, generation),
      onState: (state, at, why) => generation === this.generation && this.onState(state, at, why),
    });
  }

  stop() {
    clearTimeout(this.retry);
    this.generation += 1;
    this.off?.();
    this.off = null;
  }

  // In order: inflating a keyframe takes a turn or two, and deltas must not overtake it.
  #queue(payload, generation) {
    this.stats.bytes += payload.length + 1;
    const unpacked = isKeyframe(payload) ? unpackKeyframe(payload) : null;
    this.waiting = this.waiting
      .then(async () => {
        const bytes = unpacked && (await unpacked);
        if (generation === this.generation) this.#take(payload, bytes);
      })
      .catch(() => generation === this.generation && this.#again());
  }

  #take(payload, unpacked) {
    const began = performance.now();
    if (unpacked) {
      const frame = readKeyframe(unpacked);
      this.stats.keyframes += 1;
      if (this.tree?.epoch === frame.epoch && this.tree.count === frame.nodes.length) {
        this.tree.refresh(frame);
        this.onValues(this.tree, frame.values.length);
      } else {
        this.tree = new Tree(frame);
        this.onTree(this.tree);
      }
    } else {
      const { tree } = this;
      const head = readDeltaHead(payload);
      if (tree === null || head.epoch !== tree.epoch || head.seq <= tree.seq) return;
      if (head.seq !== tree.seq + 1) {
        this.#again();
        return;
      }
      const changes = applyDelta(payload, tree.values);
      tree.seq = head.seq;
      tree.at = head.at;
      tree.settle();
      this.onValues(tree, changes);
    }
    this.stats.add(performance.now() - began);
  }

  #again() {
    this.stats.resyncs += 1;
    this.tree = null; // deltas are of no use until the next keyframe
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.off?.resync(), RESYNC_MS * Math.random());
  }
}

const KEPT = 600;

// What an update takes, from its bytes to the drawn wall; window.gatehouseFlame shows it.
export class Stats {
  constructor() {
    this.updates = 0;
    this.keyframes = 0;
    this.resyncs = 0;
    this.bytes = 0;
    this.since = performance.now();
    this.samples = new Float32Array(KEPT);
  }

  add(milliseconds) {
    this.samples[this.updates % KEPT] = milliseconds;
    this.updates += 1;
  }

  reset() {
    this.updates = 0;
    this.keyframes = 0;
    this.resyncs = 0;
    this.bytes = 0;
    this.since = performance.now();
  }

  summary() {
    const sorted = this.samples.slice(0, Math.min(this.updates, KEPT)).sort();
    const at = (share) => (sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : null);
    const seconds = (performance.now() - this.since) / 1000;
    return {
      updates: this.updates,
      keyframes: this.keyframes,
      resyncs: this.resyncs,
      bytes_per_second: this.bytes / seconds,
      p50_ms: at(0.5),
      p95_ms: at(0.95),
      worst_ms: sorted.length ? sorted[sorted.length - 1] : null,
    };
  }
}
