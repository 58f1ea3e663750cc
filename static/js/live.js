// Live channels: one websocket a page, shared by all that watch. Hidden tabs unsubscribe, and a tab that comes back,
// wakes or leaves the back-forward cache subscribes again and gets a keyframe first.
//
//   const off = live("fleet", "", { onFrame, onState });
//   onFrame(frame)          an object for text frames, a Uint8Array for binary ones
//   onState(state, at, why) connecting, live, paused, reconnecting, stale or denied; `at` is seconds since the epoch
//   off.resync()            asks for a keyframe, for decoders that lost their place; off() stops watching
import { fill, words } from "./words.js";

const ADDRESS = "/ws/live";
const CLOSE_DENIED = 4403;
const STALE_MS = 4000; // at least; feeds with a longer period are waited for longer
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
const HIDDEN_CLOSE_MS = 60000;
const TICK_MS = 1000;
const TONES = { connecting: "", live: "good", reconnecting: "warn pulse", stale: "warn", paused: "", denied: "bad" };

const watches = new Set();
let socket = null;
let wait = FIRST_WAIT_MS;
let retry = 0;
let closing = 0;
let heardAt = 0;
let lastNumber = 0;
let deniedWhy = null; // not null: the server has said that we may not, trying again is of no use
let refused = 0; // handshakes in a row that came to nothing
let started = false;

class Watch {
  constructor(channel, scope, { onFrame, onState }) {
    this.channel = channel;
    this.scope = scope;
    this.onFrame = onFrame;
    this.onState = onState ?? (() => {});
    this.number = 0; // 0: not subscribed
    this.staleMs = STALE_MS;
    this.frameAt = 0;
    this.at = null;
    this.state = "";
    this.setState("connecting");
  }

  setState(state, why = "") {
    if (state === this.state && !why) return;
    this.state = state;
    this.onState(state, this.at, why);
  }

  subscribe() {
    if (this.state === "denied") return;
    // Nothing was to be heard while nothing was watched: that is no sign of a socket that is dead.
    if (![...watches].some((watch) => watch.number)) heardAt = performance.now();
    lastNumber = (lastNumber % 255) + 1; // a new one each time: frames that are still under way are no longer ours
    this.number = lastNumber;
    this.frameAt = performance.now();
    say({ op: "subscribe", n: this.number, channel: this.channel, scope: this.scope });
  }

  unsubscribe() {
    if (this.number) say({ op: "unsubscribe", n: this.number });
    this.number = 0;
  }

  receive(frame) {
    this.frameAt = performance.now();
    this.at = typeof frame.at === "number" ? frame.at : Date.now() / 1000; // arrays of bytes have a method of that name
    wait = FIRST_WAIT_MS;
    this.setState("live");
    if (!frame.same) this.onFrame(frame);
  }

  hear(message) {
    if (message.op === "subscribed") this.staleMs = Math.max(STALE_MS, 3000 * message.period);
    else if (message.op === "trouble" && message.code === "board") this.setState("reconnecting");
    else if (message.op === "trouble") this.setState("stale", words.live_why?.[message.code] ?? "");
    else if (message.op === "error") {
      this.number = 0;
      this.setState("denied", words.live_why?.[message.code] ?? "");
    }
  }

  checkStale(now) {
    if ((this.state === "live" || this.state === "connecting") && this.number && now - this.frameAt > this.staleMs) this.setState("stale");
  }
}

export function live(channel, scope, handlers) {
  const watch = new Watch(channel, scope, handlers);
  watches.add(watch);
  if (!started) start();
  if (deniedWhy !== null) watch.setState("denied", deniedWhy);
  else if (document.hidden) watch.setState("paused");
  else if (socket?.readyState === WebSocket.OPEN) watch.subscribe();
  else open();
  const off = () => {
    watch.unsubscribe();
    watches.delete(watch);
  };
  off.resync = () => {
    if (!watch.number) return;
    watch.unsubscribe();
    watch.subscribe();
  };
  return off;
}

function start() {
  started = true;
  document.addEventListener("visibilitychange", () => (document.hidden ? hide() : show()));
  // An open socket would keep the page out of the back-forward cache.
  window.addEventListener("pagehide", () => drop("paused"));
  window.addEventListener("pageshow", (event) => event.persisted && show());
  window.addEventListener("online", () => show());
  setInterval(tick, TICK_MS);
}

function say(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function open() {
  clearTimeout(retry);
  if (socket || deniedWhy !== null || document.hidden || !watches.size) return;
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const opened = new WebSocket(`${scheme}//${location.host}${ADDRESS}`);
  opened.binaryType = "arraybuffer";
  socket = opened;
  heardAt = performance.now();
  opened.addEventListener("open", () => {
    refused = 0;
    if (socket === opened && !document.hidden) for (const watch of watches) watch.subscribe();
  });
  opened.addEventListener("message", (event) => {
    if (socket === opened) receive(event.data);
  });
  opened.addEventListener("close", (event) => {
    if (socket !== opened) return;
    forget();
    if (event.code === CLOSE_DENIED) deny(event.reason);
    else if (!document.hidden) {
      tryAgain();
      refused += 1;
      if (refused > 1) askWhy();
    }
  });
}

function deny(reason) {
  clearTimeout(retry);
  deniedWhy = words.live_why?.[reason] ?? "";
  for (const watch of watches) watch.setState("denied", deniedWhy);
}

// A handshake that is refused says nothing to scripts: whoever was logged out meanwhile would try for ever.
async function askWhy() {
  try {
    const answer = await fetch(words.live_standing, { cache: "no-store", redirect: "manual" });
    if (answer.status === 403) deny(await answer.text());
  } catch {
    // The server is away; it is tried again.
  }
}

function receive(data) {
  heardAt = performance.now();
  const binary = data instanceof ArrayBuffer;
  const message = binary ? new Uint8Array(data) : JSON.parse(data);
  const number = binary ? message[0] : message.n;
  for (const watch of watches) {
    if (watch.number !== number) continue;
    if (binary) watch.receive(message.subarray(1));
    else if (message.op) watch.hear(message);
    else watch.receive(message);
  }
}

function forget() {
  socket = null;
  for (const watch of watches) watch.number = 0;
}

function tryAgain() {
  for (const watch of watches) if (watch.state !== "denied") watch.setState("reconnecting");
  clearTimeout(retry);
  // Spread out, so that a restarted server is not met by every tab at once.
  retry = setTimeout(open, wait * (0.5 + Math.random()));
  wait = Math.min(LONGEST_WAIT_MS, wait * 2);
}

function drop(state) {
  clearTimeout(retry);
  clearTimeout(closing);
  const dropped = socket;
  forget();
  // Closing a socket that is still connecting is reported as an error; wait until it has.
  if (dropped?.readyState === WebSocket.CONNECTING) dropped.addEventListener("open", () => dropped.close());
  else dropped?.close();
  for (const watch of watches) if (watch.state !== "denied") watch.setState(state);
}

function hide() {
  clearTimeout(retry);
  for (const watch of watches) {
    watch.unsubscribe();
    if (watch.state !== "denied") watch.setState("paused");
  }
  clearTimeout(closing);
  closing = setTimeout(() => document.hidden && drop("paused"), HIDDEN_CLOSE_MS);
}

function show() {
  clearTimeout(closing);
  if (document.hidden) return;
  if (socket?.readyState !== WebSocket.OPEN) {
    open();
    return;
  }
  for (const watch of watches) if (!watch.number) watch.subscribe();
}

function tick() {
  const now = performance.now();
  for (const watch of watches) watch.checkStale(now);
  // A laptop that slept, or a network that went, leaves a socket that looks open and says nothing for ever.
  const longest = Math.max(STALE_MS, ...[...watches].filter((watch) => watch.number).map((watch) => watch.staleMs));
  const watching = [...watches].some((watch) => watch.number);
  const silent = watching && now - heardAt > 2.5 * longest;
  const stuck = socket?.readyState === WebSocket.CONNECTING && now - heardAt > LONGEST_WAIT_MS;
  if (socket && (silent || stuck)) {
    const dead = socket;
    forget();
    dead.close();
    if (!document.hidden) tryAgain();
  }
}

// `at` is seconds since the epoch, null where nothing has come yet. The reason is put behind the pill, in a place that is
// there before: so it is read out for sure.
export function showState(pill, state, at = null, why = "") {
  pill.className = `pill ${TONES[state]}`;
  pill.dataset.value = state;
  const old = at !== null && state !== "live" && state !== "connecting" && state !== "denied";
  put(pill, old ? `${words[state]} · ${asOf(at)}` : words[state]);
  let reason = pill.nextElementSibling;
  if (!reason?.matches("[data-live-why]")) {
    reason = document.createElement("span");
    reason.dataset.liveWhy = "";
    reason.setAttribute("role", "status");
    pill.after(reason);
  }
  reason.className = why ? "note" : "sr";
  put(reason, why);
}

// What is put is read out: the same reason comes with every round.
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function asOf(at) {
  const time = new Intl.DateTimeFormat(document.documentElement.lang, {
    timeStyle: "medium",
    hourCycle: "h23",
    timeZone: words.zone,
  });
  return fill(words.as_of, { time: time.format(at * 1000), zone: words.zone });
}
