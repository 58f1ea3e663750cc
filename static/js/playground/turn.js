// One question and its answer in one pane. What models say is text: it is never read as markup.
import { number } from "../format.js";
import { fill } from "../words.js";
import { events } from "./sse.js";

const MILLION = 1_000_000;

export class Turn {
  constructor(facts, words, model) {
    this.facts = facts;
    this.words = words;
    this.text = "";
    this.failed = false;
    this.model = model;
    this.how = ""; // it ended, where not as it should
    this.node = element("li", "turn assistant");
    this.node.append(Object.assign(element("div", "turn-model"), { textContent: model }));
    this.thought = null;
    this.body = this.node.appendChild(element("div", "turn-text"));
    this.note = this.node.appendChild(element("div", "turn-note"));
    this.note.textContent = words.waiting;
  }

  // Asks and writes as it is answered; ends when the answer does. Never throws.
  async ask(url, token, body, signal) {
    const sent = performance.now();
    let first = null;
    let last = null;
    let pieces = 0;
    let usage = null;
    let reason = null;
    let ended = false;
    let reached = false;
    let id = "";
    try {
      const response = await fetch(url, {
        method: "POST",
        credentials: "same-origin",
        redirect: "manual",
        headers: { "Content-Type": "application/json", "X-CSRFToken": token },
        body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
        signal,
      });
      reached = true;
      id = response.headers.get("x-request-id") ?? "";
      if (!response.ok || !response.headers.get("content-type")?.startsWith("text/event-stream")) {
        await this.refuse(response, id);
        return;
      }
      for await (const event of events(response.body)) {
        if (event === null) {
          ended = true;
          break;
        }
        if (event.error) {
          this.tell(errorText(event.error, null, this.words.errors), id, true, true);
          return;
        }
        const choice = event.choices?.[0];
        const said = choice?.delta?.content;
        const thought = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning;
        if (said || thought) {
          last = performance.now();
          first ??= last;
          pieces += 1;
          if (thought) this.think(thought);
          if (said) this.say(said);
        }
        reason = choice?.finish_reason ?? reason;
        usage = event.usage ?? usage;
      }
      const figures = this.figures({ sent, first, last, pieces, usage, model: body.model });
      const how = !ended ? this.words.broken : reason === "length" ? this.words.cut : !this.text ? this.words.empty : "";
      this.how = how;
      this.tell([how, figures].filter(Boolean).join(" "), id, !ended, true);
    } catch (error) {
      if (error.name === "AbortError") {
        const figures = this.figures({ sent, first, last, pieces, usage, model: body.model });
        this.how = this.words.stopped;
        this.tell([this.how, figures].filter(Boolean).join(" "), id, false, reached);
        this.failed = !this.text;
      } else {
        this.tell(reached ? this.words.broken : this.words.unreachable, id, true, reached);
      }
    }
  }

  async refuse(response, id) {
    let text = "";
    if (response.type === "opaqueredirect") text = this.words.session;
    else {
      try {
        const told = await response.json();
        text = errorText(told.error, response.status, this.words.errors);
      } catch {
        text = response.status === 403 ? this.words.session : `${response.status}`;
      }
    }
    const wait = response.headers.get("retry-after");
    if (wait) text += ` ${fill(this.words.retry, { seconds: wait })}`;
    this.tell(text, id, true);
  }

  say(text) {
    this.text += text;
    this.body.textContent = this.text;
    this.note.textContent = "";
  }

  think(text) {
    if (!this.thought) {
      const details = element("details", "turn-thought");
      details.append(Object.assign(element("summary"), { textContent: this.words.thinking }));
      this.thought = details.appendChild(element("div"));
      this.node.prepend(details);
    }
    this.thought.textContent += text;
    this.note.textContent = "";
  }

  // `kept`: the ledger gets a row of it, where what it used and cost can be read; of what is refused there is none.
  tell(text, id, failed, kept = false) {
    this.failed ||= failed;
    this.note.classList.toggle("bad-text", failed);
    if (failed) this.note.setAttribute("role", "alert");
    this.note.textContent = text;
    if (!id) return;
    const named = fill(this.words.request, { id });
    const link = kept && this.facts.requests;
    const told = link ? Object.assign(element("a"), { href: `${this.facts.requests}${id}/`, target: "_blank", rel: "noopener" }) : element("span");
    told.textContent = named;
    this.note.append(text ? " · " : "", told);
  }

  // What is read out of it: what failed says so itself.
  get spoken() {
    if (this.note.getAttribute("role") === "alert") return "";
    return [this.text && `${this.model}: ${this.text}`, this.how].filter(Boolean).join(" ");
  }

  figures({ sent, first, last, pieces, usage, model }) {
    const told = [];
    if (first !== null) told.push(fill(this.words.ttft, { time: number(first - sent, 0) }));
    const tokens = usage?.completion_tokens ?? pieces;
    if (first !== null && tokens > 1 && last > first) {
      told.push(fill(this.words.tpot, { time: number((last - first) / (tokens - 1), 1) }));
    }
    if (usage) {
      told.push(
        fill(this.words.tokens, { input: number(usage.prompt_tokens, 0), output: number(usage.completion_tokens, 0) }),
      );
      told.push(this.cost(model, usage));
    }
    return told.join(" · ");
  }

  // By the price list, as tenants.policies.pricing counts: rounded up once, in millionths.
  cost(model, usage) {
    if (this.facts.by_version.includes(model)) return this.words.by_version;
    const price = this.facts.prices[model];
    if (!price) return this.words.no_price;
    const [input, cachedPrice, output, request] = price;
    const cached = Math.min(Math.max(usage.prompt_tokens_details?.cached_tokens ?? 0, 0), usage.prompt_tokens);
    const sum = (usage.prompt_tokens - cached) * input + cached * cachedPrice + usage.completion_tokens * output;
    const micros = request + Math.ceil(sum / MILLION);
    return `${number(micros / MILLION, 6)} ${this.facts.currency}`;
  }
}

export function element(tag, className = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  return node;
}

// `said`: what codes mean, where the reader's language is not the one that the gateway answers in.
function errorText(error, status, said) {
  const code = error?.code ?? error?.type ?? "";
  return [status ? `${status}` : "", code, said[code] ?? "", error?.message ?? ""].filter(Boolean).join(" · ");
}
