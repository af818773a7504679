// paper.js - draws the messages of a snapshot. What did not change is the same object as before, so it is passed over
// by comparing; of a part that has grown, only the new text is put into the page. Text goes there as text, never as HTML.

import { GrowingText } from "./text.js";

const MAX_SHOWN = 200; // messages; older ones are taken out of the page
const COUNTED = 50; // characters by which a text grows before its count is written anew
const FOLDED = new Set(["thinking", "tool_args", "tool_output"]);
const number = new Intl.NumberFormat("en");

export const ENDS = { open: "writing", complete: "complete", cancelled: "stopped", aborted: "broken off", error: "failed" };

const copy = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

// Only what differs; and into the Text node that is there, since a new one costs the browser more.
export function write(element, text) {
  const node = element.firstChild ?? element.appendChild(new Text());
  if (node.data !== text) node.data = text;
}

// One stream's messages, the newest last.
export class Paper {
  element = document.createElement("div");
  #messages;
  #articles = [];

  constructor() {
    this.element.className = "log";
  }

  // Whether something is being written.
  get isOpen() {
    return this.#articles.some((article) => article.message.status === "open");
  }

  draw(messages) {
    if (messages === this.#messages) return;
    this.#messages = messages;
    const shown = messages.length > MAX_SHOWN ? messages.slice(-MAX_SHOWN) : messages;
    while (this.#articles.length && this.#articles[0].message.mid !== shown[0]?.mid) this.#articles.shift().remove();
    shown.forEach((message, at) => this.#place(message, at));
    while (this.#articles.length > shown.length) this.#articles.pop().remove();
  }

  #place(message, at) {
    const article = this.#articles[at];
    if (article?.message === message) return;
    if (article?.message.mid === message.mid) return article.draw(message);
    // After a reset: not what stood here.
    this.#articles.splice(at).forEach((old) => old.remove());
    this.#articles.push(new Article(message, this.element));
  }
}

class Article {
  #element = copy("message");
  #box = this.#element.querySelector(".parts");
  #foot = this.#element.querySelector(".foot");
  #parts = [];

  constructor(message, log) {
    this.#element.dataset.mid = message.mid;
    this.#element.dataset.role = message.role;
    write(this.#element.querySelector(".who"), message.role === "user" ? "You" : (message.meta.title ?? message.role));
    this.draw(message);
    log.append(this.#element);
  }

  draw(message) {
    this.message = message;
    message.parts.forEach((part, at) => this.#place(part, at));
    this.#parts.splice(message.parts.length).forEach((old) => old.element.remove());
    if (this.#element.dataset.status === message.status) return;
    this.#element.dataset.status = message.status;
    const { status, error, usage } = message;
    write(this.#foot, error ? `${ENDS[status]}: ${error}` : usage ? `${number.format(usage.letters)} characters` : ENDS[status]);
  }

  #place(part, at) {
    const known = this.#parts[at];
    if (known?.part === part) return;
    if (known?.part.id === part.id) return known.draw(part);
    const fresh = new Passage(part);
    if (known) known.element.replaceWith(fresh.element);
    else this.#box.append(fresh.element);
    this.#parts[at] = fresh;
  }

  remove() {
    this.#element.remove();
  }
}

// A part. What only some want to read is folded: text in a closed <details> is not laid out.
class Passage {
  #text;
  #kind;
  #count;
  #counted = 0;

  constructor(part) {
    this.element = copy(FOLDED.has(part.kind) ? "fold" : "part");
    this.element.dataset.kind = part.kind;
    const box = this.element.querySelector(".text");
    box.dataset.part = part.id;
    this.#text = new GrowingText(box);
    this.#kind = this.element.querySelector(".kind");
    this.#count = this.element.querySelector(".count");
    this.draw(part);
  }

  draw(part) {
    this.part = part;
    this.#text.grow(part.text);
    if (this.element.dataset.open !== String(part.open)) {
      this.element.dataset.open = part.open;
      write(this.#kind, title(part));
      this.#counted = -Infinity;
    }
    if (this.#count && part.text.length - this.#counted >= COUNTED) {
      this.#counted = part.text.length;
      write(this.#count, `${number.format(this.#counted)} characters`);
    }
  }
}

function title({ kind, open, meta }) {
  if (kind === "thinking") return open ? "Thinking" : "Thought";
  if (kind === "tool_args") return `${open ? "Calls" : "Called"} ${meta.tool ?? "a tool"}`;
  if (kind === "tool_output") return `${meta.tool ?? "The tool"} answered`;
  return meta.title ?? (kind === "text" ? "" : kind);
}
