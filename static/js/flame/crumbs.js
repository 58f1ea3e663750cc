// The way from the whole pool to the scope, in the head of the wall's card; all but the last lead back.
import { nameOf } from "./tooltip.js";

export function showCrumbs(list, tree, scope, onChoose) {
  const path = tree.path(scope);
  const items = path.map((place, at) => {
    const item = document.createElement("li");
    if (at === path.length - 1) {
      item.setAttribute("aria-current", "location");
      item.textContent = nameOf(tree, place);
    } else {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = nameOf(tree, place);
      button.addEventListener("click", () => onChoose(place));
      item.append(button);
    }
    return item;
  });
  list.replaceChildren(...items);
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
