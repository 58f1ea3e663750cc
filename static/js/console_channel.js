// One websocket with back-off. Says Live, Reconnecting, Stale or No permission; closes while the tab is hidden.
import { words } from "./words.js";

const STALE_AFTER_MS = 4000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
const CLOSE_DENIED = 4403;
const TONES = { connecting: "", live: "good", reconnecting: "warn pulse", stale: "warn", paused: "", denied: "bad" };

export class LiveChannel {
  // `onFrame(frame)` gets parsed frames in order; `onState(state)` gets each change of state.
  constructor(path, { onFrame, onState }) {
    this.path = path;
    this.onFrame = onFrame;
    this.onState = onState;
    this.wait = FIRST_WAIT_MS;
    this.socket = null;
    this.retry = 0;
    this.lastFrameAt = 0;
    this.sequence = -1;
    this.state = "";
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.open()));
    setInterval(() => this.checkStale(), 1000);
    this.setState("connecting");
    this.open();
  }

  open() {
    clearTimeout(this.retry);
    if (this.socket || this.state === "denied" || document.hidden) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.path}`);
    this.socket = socket;
    this.sequence = -1;
    socket.addEventListener("message", (event) => {
      if (this.socket === socket) this.receive(JSON.parse(event.data));
    });
    socket.addEventListener("close", (event) => {
      if (this.socket !== socket) return;
      this.socket = null;
      if (event.code === CLOSE_DENIED) {
        this.setState("denied");
      } else if (!document.hidden) {
        this.setState("reconnecting");
        // Spread out, so that a restarted server is not met by every tab at once.
        this.retry = setTimeout(() => this.open(), this.wait * (0.5 + Math.random()));
        this.wait = Math.min(LONGEST_WAIT_MS, this.wait * 2);
      }
    });
  }

  pause() {
    clearTimeout(this.retry);
    const socket = this.socket;
    this.socket = null;
    // Closing a socket that is still connecting is reported as an error; wait until it has.
    if (socket?.readyState === WebSocket.CONNECTING) socket.addEventListener("open", () => socket.close());
    else socket?.close();
    if (this.state !== "denied") this.setState("paused");
  }

  receive(frame) {
    if (frame.seq <= this.sequence) return;
    this.sequence = frame.seq;
    if (frame.v === "trouble.v1") {
      this.setState("stale");
      return;
    }
    this.wait = FIRST_WAIT_MS;
    this.lastFrameAt = performance.now();
    this.setState("live");
    this.onFrame(frame);
  }

  checkStale() {
    if (this.state === "live" && performance.now() - this.lastFrameAt > STALE_AFTER_MS) this.setState("stale");
  }

  setState(state) {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }
}

export function showState(pill, state) {
  pill.className = `pill ${TONES[state]}`;
  pill.dataset.value = state;
  pill.textContent = words[state];
}
