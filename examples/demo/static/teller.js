// teller.js - tells those who hear the page what happens: that an answer has begun, and, when it has ended, how and how it
// begins. Not each token, as a live region around the text would.

import { ENDS } from "./paper.js";

const BEGINNING = 160; // characters of an answer that are read aloud

export class Teller {
  #mid; // of the answer whose end will be told
  #name;

  constructor(element) {
    this.element = element;
  }

  // To another stream, by its name.
  turn(name) {
    this.#name = name;
    this.#mid = undefined;
  }

  hear(messages) {
    const newest = messages.at(-1);
    const told = this.#mid && messages.findLast(({ mid }) => mid === this.#mid);
    if (told && told.status !== "open") {
      this.#mid = undefined;
      this.tell(`${this.#name}, ${ENDS[told.status]}. ${beginning(told)}`);
    }
    if (newest?.status !== "open" || newest.role === "user" || this.#mid) return;
    this.#mid = newest.mid;
    this.tell(`${this.#name} is writing.`);
  }

  tell(text) {
    this.element.textContent = text;
  }
}

function beginning({ parts }) {
  const text = parts.find(({ kind }) => kind === "text")?.text ?? "";
  return text.length > BEGINNING ? `${text.slice(0, text.lastIndexOf(" ", BEGINNING))} …` : text;
}
