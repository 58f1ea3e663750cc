// The way from the whole pool to the scope, in the head of the wall's card; all but the last lead back.
import { nameOf } from "./tooltip.js";

export class Crumbs {
  // `onChoose(key)`: of the place to go back to.
  constructor(list, onChoose) {
    this.list = list;
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) onChoose(button.parentElement.dataset.key);
    });
  }

  // Those that stay are not made anew: the focus may be on one.
  show(tree, scope) {
    const path = tree.path(scope);
    path.forEach((place, at) => {
      const key = tree.keys[place];
      const last = at === path.length - 1;
      let item = this.list.children[at];
      if (!item || item.dataset.key !== key || (item.firstElementChild === null) !== last) {
        const made = this.#item(key, last);
        if (item) item.replaceWith(made);
        else this.list.append(made);
        item = made;
      }
      const text = item.firstElementChild ?? item;
      const name = nameOf(tree, place);
      if (text.textContent !== name) text.textContent = name;
    });
    while (this.list.children.length > path.length) this.list.lastElementChild.remove();
  }

  #item(key, last) {
    const item = document.createElement("li");
    item.dataset.key = key;
    if (last) {
      item.setAttribute("aria-current", "location");
    } else {
      const button = document.createElement("button");
      button.type = "button";
      item.append(button);
    }
    return item;
  }
}

// The GPU whose history is shown: the scope's own, the one of before while the scope holds it, else its fullest.
export function deviceOf(tree, scope, before, kindOfGpu) {
  const own = tree.ancestor(scope, kindOfGpu);
  if (own >= 0) return own;
  const known = before ? tree.find(`gpu:${before}`) : -1;
  if (known >= scope && known < tree.end[scope]) return known;
  let fullest = -1;
  for (let place = scope; place < tree.end[scope]; place++) {
    if (tree.kind[place] === kindOfGpu && (fullest < 0 || tree.used[place] > tree.used[fullest])) fullest = place;
  }
  return fullest;
}
