// The page's words in the reader's language, sent by dashboard/strings.py.
const node = document.getElementById("gatehouse-strings");

export const words = node ? JSON.parse(node.textContent) : {};

export function fill(text, values) {
  return text.replace(/%\((\w+)\)s/g, (_, name) => values[name]);
}
