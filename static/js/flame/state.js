// What the page shows stands in its address: scope, view, colours, moment, search. Back and forward walk through it.
const DEFAULTS = { scope: "", view: "wall", by: "segment", at: "", q: "" };
const CHOICES = { view: ["wall", "icicle"], by: ["segment", "tenant"] };

export function readState() {
  const asked = new URLSearchParams(location.search);
  const state = {};
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = asked.get(name) ?? usual;
    state[name] = CHOICES[name] && !CHOICES[name].includes(value) ? usual : value;
  }
  if (!/^\d{9,11}$/.test(state.at)) state.at = "";
  return state;
}

// `step`: a step that "back" undoes; otherwise the entry of now is changed.
export function writeState(state, { step = false } = {}) {
  const asked = new URLSearchParams(location.search);
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    if (state[name] === usual) asked.delete(name);
    else asked.set(name, state[name]);
  }
  const query = asked.toString();
  const address = `${location.pathname}${query ? `?${query}` : ""}`;
  if (address === `${location.pathname}${location.search}`) return;
  try {
    history[step ? "pushState" : "replaceState"](null, "", address);
  } catch {
    // Browsers refuse more than so many a minute: the page goes on, the address follows with the next change.
  }
}

export function onWalk(callback) {
  addEventListener("popstate", () => callback(readState()));
}
