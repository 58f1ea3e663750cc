// The playground: one or two conversations, asked at once with the same parameters. Nothing is kept after the page.
import { fill } from "../words.js";
import { asCurl, asJavaScript, asPython } from "./code.js";
import { Turn, element } from "./turn.js";

const NEAR_PX = 40;
const TOLD_MS = 5000;
const LANGUAGES = { curl: asCurl, python: asPython, javascript: asJavaScript };

const form = document.getElementById("playground");

if (form) {
  const facts = JSON.parse(document.getElementById("playground-facts").textContent);
  const { words } = facts;
  const panes = document.getElementById("play-panes");
  const text = document.getElementById("play-text");
  const fault = document.getElementById("play-fault");
  const code = document.getElementById("play-code");
  const stop = form.querySelector('[data-play="stop"]');
  const send = form.querySelector('[type="submit"]');
  const token = form.elements.csrfmiddlewaretoken.value;
  let kept = []; // the one beside stays as it was while it is not shown
  let conversations = [];
  let asking = null;

  class Conversation {
    constructor(field) {
      this.field = field;
      this.messages = [];
      this.models = new Set();
      this.node = element("section", "card play-pane");
      const head = this.node.appendChild(element("header"));
      this.title = head.appendChild(element("h2"));
      this.list = this.node.appendChild(element("ol", "turns"));
      this.list.tabIndex = 0; // it scrolls
      this.list.dataset.none = words.none;
      this.told = this.node.appendChild(element("p", "sr"));
      this.told.setAttribute("role", "status");
      this.name();
    }

    // Read out: each answer once, when it is whole, and not at each of its words.
    tell(text) {
      clearTimeout(this.silence);
      this.told.textContent = text;
      this.silence = setTimeout(() => (this.told.textContent = ""), TOLD_MS); // it stands in the list
    }

    name() {
      this.title.textContent = this.field.value;
      this.list.setAttribute("aria-label", this.field.value);
    }

    async ask(question, parameters, signal) {
      this.name();
      const asked = element("li", "turn user");
      asked.append(Object.assign(element("div", "turn-text"), { textContent: question }));
      const model = this.field.value;
      this.models.add(model);
      this.node.classList.toggle("mixed", this.models.size > 1); // then each answer says whose it is
      const turn = new Turn(facts, words, model);
      this.list.append(asked, turn.node);
      this.list.scrollTop = this.list.scrollHeight;
      const messages = [...this.messages, { role: "user", content: question }];
      let height = this.list.scrollHeight;
      const follow = () => {
        // Who has scrolled up reads there.
        const read = this.list.scrollTop + this.list.clientHeight >= height - NEAR_PX;
        height = this.list.scrollHeight;
        if (read) this.list.scrollTop = height;
      };
      const following = setInterval(follow, 200);
      await turn.ask(form.dataset.url, token, bodyOf(model, messages, parameters), signal);
      this.tell(turn.spoken);
      clearInterval(following);
      follow();
      // What failed is no part of the conversation: the next question is asked as if it had not been.
      if (!turn.failed) this.messages = [...messages, { role: "assistant", content: turn.text }];
      return !turn.failed;
    }
  }

  function bodyOf(model, messages, { system, ...parameters }) {
    const before = system ? [{ role: "system", content: system }] : [];
    return { model, messages: [...before, ...messages], ...parameters };
  }

  // The parameters that are given, or null where one makes no sense, which is then said.
  function read() {
    const found = {};
    fault.hidden = true;
    for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
      const field = form.elements[name];
      const typed = field.value.trim();
      field.removeAttribute("aria-invalid");
      field.removeAttribute("aria-describedby");
      if (!typed) continue;
      const value = Number(typed);
      const { low, high } = field.dataset;
      const whole = !("whole" in field.dataset) || Number.isInteger(value);
      if (!Number.isFinite(value) || !whole || value < Number(low) || value > Number(high)) {
        field.setAttribute("aria-invalid", "true");
        field.setAttribute("aria-describedby", fault.id);
        fault.textContent = fill(words.number, { name, low, high });
        fault.hidden = false;
        field.focus();
        return null;
      }
      found[name] = value;
    }
    const stops = form.elements.stop.value.split("|").filter(Boolean);
    if (stops.length) found.stop = stops;
    const system = form.elements.system.value.trim();
    if (system) found.system = system;
    return found;
  }

  function lay() {
    const both = form.elements.beside.checked;
    form.querySelector("[data-play-b]").hidden = !both;
    const fields = [form.elements.model_a, ...(both ? [form.elements.model_b] : [])];
    fields.forEach((field, place) => (kept[place] ??= new Conversation(field)));
    conversations = kept.slice(0, fields.length);
    panes.replaceChildren(...conversations.map((one) => one.node));
    panes.classList.toggle("two", both);
    for (const one of conversations) one.name();
  }

  async function submit() {
    const question = text.value.trim();
    const parameters = question && !asking ? read() : null;
    if (!parameters) return;
    text.value = "";
    asking = new AbortController();
    stop.hidden = false;
    send.disabled = true;
    const asked = conversations;
    const told = await Promise.all(asked.map((one) => one.ask(question, parameters, asking.signal)));
    // To be asked again without typing it anew, except where it was cleared away.
    if (!told.includes(true) && !text.value && asked.every((one) => kept.includes(one))) text.value = question;
    asking = null;
    const here = [document.body, stop, send].includes(document.activeElement); // who has gone elsewhere reads there
    stop.hidden = true;
    send.disabled = false;
    if (here) text.focus();
  }

  function showCode() {
    const parameters = read();
    if (!parameters) return;
    const draft = text.value.trim();
    const both = conversations.length > 1;
    code.classList.toggle("two", both);
    for (const part of code.querySelectorAll('[data-code-beside], [data-code-name="0"]')) part.hidden = !both;
    conversations.forEach((one, at) => {
      const messages = draft || !one.messages.length ? [...one.messages, { role: "user", content: draft }] : one.messages;
      const body = bodyOf(one.field.value, messages, parameters);
      for (const name of code.querySelectorAll(`[data-code-name="${at}"]`)) name.textContent = one.field.value;
      for (const [language, write] of Object.entries(LANGUAGES)) {
        document.getElementById(`code-${language}${at ? "-beside" : ""}`).textContent = write(facts.base_url, body);
      }
    });
    code.showModal();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  form.addEventListener("change", (event) => {
    if (["beside", "model_a", "model_b"].includes(event.target.name)) lay();
  });
  document.addEventListener("click", (event) => {
    const deed = event.target.closest("[data-play]")?.dataset.play;
    if (deed === "stop") asking?.abort();
    else if (deed === "code") showCode();
    else if (deed === "close-code") code.close();
    else if (deed === "clear") {
      asking?.abort();
      kept = [];
      lay();
    }
  });
  addEventListener("pagehide", () => asking?.abort());
  lay();
}
