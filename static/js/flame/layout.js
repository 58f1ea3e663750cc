// Where bands, rows and bytes lie. Bands are the children of the scope; rows are levels of the tree; x is MiB.
import { CLUSTER, GPU, NODE, SEGMENT } from "./tree.js";

const GAP = 8;
const ONE_BAND = 292;
const LEAST_PITCH = 26;

function pitch(count, kind) {
  const wanted = kind === NODE ? 92 : 78;
  if (count <= 8) return wanted;
  return Math.max(LEAST_PITCH, Math.round(Math.min(wanted, 1000 / count)));
}

// Tops of the rows of a band, and its bottom, in pixels from its top: the segments' row is the tallest.
function rowTops(rows, height) {
  const share = rows <= 1 ? 1 : 1 / (rows + 1.9);
  const tops = [];
  for (let row = 0; row < rows; row++) tops.push(Math.round(row * share * height));
  tops.push(height);
  return tops;
}

export class Plan {
  // `scope` is a place of the tree; `view` wall or icicle.
  constructor(tree, scope, view) {
    this.tree = tree;
    this.scope = scope;
    const kind = tree.kind[scope];
    this.banded = view === "wall" && (kind === CLUSTER || kind === NODE);
    const roots = this.banded ? tree.children(scope) : [scope];
    // Above a single band stand the scope's ancestors from the GPU down, as wide as it.
    this.crown = this.banded || kind <= GPU ? [] : tree.path(scope).filter((place) => tree.kind[place] >= GPU && place !== scope);
    this.firstLevel = this.banded ? tree.kind[roots[0] ?? scope] + 1 : kind - this.crown.length;
    this.rows = SEGMENT - this.firstLevel + 1;
    const one = this.banded ? pitch(roots.length, kind) : ONE_BAND;
    this.gap = this.banded ? (one < 40 ? 4 : GAP) : 0;
    this.bandHeight = one - this.gap;
    this.tops = rowTops(this.rows, this.bandHeight);
    this.bands = roots.map((root, at) => ({ root, top: at * one, at }));
    this.height = Math.max(1, roots.length * one - this.gap);
    this.x = new Float64Array(tree.count); // MiB from the start of its band
    this.#next = new Float64Array(tree.count);
    this.place();
  }

  #next;

  // Positions from sums, after those have changed.
  place() {
    const { tree, x } = this;
    const next = this.#next;
    let widest = 0;
    for (const { root } of this.bands) {
      x[root] = 0;
      next[root] = 0;
      widest = Math.max(widest, tree.sum[root]);
      for (let place = root + 1; place < tree.end[root]; place++) {
        const above = tree.parent[place];
        x[place] = next[above];
        next[place] = next[above];
        next[above] += tree.sum[place];
      }
    }
    this.widest = widest;
  }

  // The band at `y` pixels, undefined between bands.
  bandAt(y) {
    const at = this.bands[Math.floor(y / (this.bandHeight + this.gap))];
    return at && y - at.top < this.bandHeight ? at : undefined;
  }

  rowTop(place) {
    const { tree } = this;
    const level = tree.kind[place] === SEGMENT ? tree.kind[tree.parent[place]] + 1 : tree.kind[place];
    return this.tops[Math.max(0, level - this.firstLevel)];
  }

  rowBottom(place) {
    const level = this.tree.kind[place];
    return level === SEGMENT ? this.bandHeight : this.tops[level - this.firstLevel + 1];
  }

  // The place drawn at these MiB and pixels, -1 where there is none.
  at(mib, y) {
    const band = this.bandAt(y);
    if (!band || mib < 0 || mib >= this.tree.sum[band.root]) return -1;
    const { tree } = this;
    let found = -1;
    const inside = y - band.top;
    for (const place of this.crown) if (inside >= this.rowTop(place) && inside < this.rowBottom(place)) return place;
    let place = band.root;
    if (!this.banded && inside >= this.rowTop(place) && inside < this.rowBottom(place)) return place;
    descend: for (;;) {
      for (let child = place + 1; child < tree.end[place]; child = tree.end[child]) {
        if (mib >= this.x[child] && mib < this.x[child] + tree.sum[child]) {
          if (inside >= this.rowTop(child) && inside < this.rowBottom(child)) return child;
          place = child;
          continue descend;
        }
      }
      return found;
    }
  }

  // The rectangle of a drawn place in MiB and pixels; null for one that is not drawn.
  rect(place) {
    const { tree } = this;
    if (this.crown.includes(place)) {
      return { x: 0, width: tree.sum[this.scope], top: this.rowTop(place), bottom: this.rowBottom(place) };
    }
    const band = this.bands.find(({ root }) => place >= root && place < tree.end[root]);
    if (!band || (this.banded && band.root === place)) return null;
    return {
      x: this.x[place],
      width: tree.sum[place],
      top: band.top + this.rowTop(place),
      bottom: band.top + this.rowBottom(place),
    };
  }
}
