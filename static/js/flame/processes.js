// Who uses the devices of the node that is shown, against their claims. The server writes the rows.
import { ask, Denied } from "./ask.js";

const REFRESH_MS = 10000;

export class Processes {
  // `address` has a place for the node's id.
  constructor(box, address, { onDenied }) {
    this.box = box;
    this.address = address;
    this.onDenied = onDenied;
    this.node = "";
    this.timer = 0;
    this.asked = 0;
    document.addEventListener("visibilitychange", () => this.#load());
  }

  // The node's id, "" for none.
  follow(node) {
    if (!this.box || !this.address || node === this.node) return;
    this.node = node;
    this.box.hidden = !node;
    this.box.replaceChildren(); // rows of another node are none of this one
    this.#load();
  }

  async #load() {
    clearTimeout(this.timer);
    if (!this.node || document.hidden) return;
    const turn = ++this.asked;
    try {
      const address = this.address.replace("00000000-0000-0000-0000-000000000000", this.node);
      const answer = await ask(address, { own404: false });
      if (turn !== this.asked) return;
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (turn !== this.asked) return;
        const [rows, next] = [this.box, page].map((from) => from.querySelector("tbody"));
        // The frame around the rows stays: who scrolls it by keyboard keeps the focus.
        if (rows && next) rows.replaceChildren(...next.children);
        else this.box.replaceChildren(...page.body.children);
      }
    } catch (error) {
      if (error instanceof Denied) {
        this.onDenied();
        return;
      }
      // The rows of before stay; the pill says whether the server is there.
    }
    this.timer = setTimeout(() => this.#load(), REFRESH_MS);
  }
}
