// Back through the last fifteen minutes: a slider over frames that the server keeps, five seconds apart.
import { ask, Denied } from "./ask.js";
import { Tree } from "./tree.js";
import { clock, say } from "./words.js";

const SPAN_SECONDS = 900;
const STEP_SECONDS = 5;
const SETTLE_MS = 120;
const AGE_MS = 5000;

export class Scrub {
  // `onFrame(tree)`, `onLive()`, `onTrouble(sentence or "")`, `onMove(at, {settled})`, `onDenied()`.
  constructor(slider, address, { onFrame, onLive, onTrouble, onMove, onDenied }) {
    this.slider = slider;
    this.address = address;
    this.onFrame = onFrame;
    this.onLive = onLive;
    this.onTrouble = onTrouble;
    this.onMove = onMove;
    this.onDenied = onDenied;
    this.asked = 0;
    this.timer = 0;
    this.at = 0; // the moment that is shown, 0 for now; the slider moves away from it while time passes
    this.placed = 0; // where the slider was put for it
    this.skewMs = 0; // how far this machine's clock is behind the server's, whose moments these are
    slider.min = String(-SPAN_SECONDS);
    slider.max = "0";
    slider.step = String(STEP_SECONDS);
    slider.value = "0";
    slider.addEventListener("input", () => this.#moved());
    setInterval(() => this.at && this.#place(), AGE_MS);
    this.#place();
  }

  #moved() {
    const back = Number(this.slider.value);
    clearTimeout(this.timer);
    if (back >= 0) {
      this.asked += 1;
      this.onLive();
      return;
    }
    // Steps are from the moment that is shown, however long ago the slider was put there.
    const at = this.at ? this.at + back - this.placed : this.#now() + back;
    this.onMove(at);
    this.timer = setTimeout(() => this.onMove(at, { settled: true }), SETTLE_MS);
  }

  // `at`: of a frame that has just come, milliseconds.
  setClock(at) {
    this.skewMs = at - Date.now();
  }

  #now() {
    return Math.round((Date.now() + this.skewMs) / 1000);
  }

  // The slider where `at` is; 0 for now.
  put(at) {
    this.at = at;
    this.#place();
  }

  #place() {
    const back = this.at ? this.at - this.#now() : 0;
    this.slider.value = String(Math.max(-SPAN_SECONDS, Math.min(0, back)));
    this.placed = Number(this.slider.value);
    this.slider.setAttribute("aria-valuetext", this.at ? clock(this.at * 1000) : say("now"));
  }

  forget() {
    clearTimeout(this.timer);
    this.asked += 1;
  }

  // The frame at or before `at`, seconds since the epoch; without it, what is now.
  async load(at = 0) {
    const turn = ++this.asked;
    try {
      const answer = await ask(at ? `${this.address}?at=${at}` : this.address);
      if (turn !== this.asked) return;
      if (answer.status >= 400 && answer.status < 500) {
        const why = await answer.json().then((told) => told.detail, () => "");
        if (turn === this.asked) this.onTrouble(why || say("no_frame", { time: clock(at * 1000) }));
        return;
      }
      if (!answer.ok) throw new Error(answer.headers.get("X-Request-ID") ?? String(answer.status));
      const tree = new Tree(await answer.json());
      if (turn !== this.asked) return;
      this.onTrouble("");
      this.onFrame(tree, at);
    } catch (error) {
      if (error instanceof Denied) this.onDenied();
      else if (turn === this.asked) this.onTrouble(say("frame_failed", { why: error.message }));
    }
  }
}
