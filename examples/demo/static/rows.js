// rows.js - the list of streams. A row has cells of a fixed size, so that a number that changes moves nothing else; and
// what did not change is not written.

import { write } from "./paper.js";

const MOST = 99; // that a badge counts
const MILLION = 1_000_000; // from here on a count is short: that much room it has
const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", minimumFractionDigits: 2 });

export class Row {
  state = "idle";
  unread = 0;

  constructor(item) {
    this.item = item;
    this.sid = item.dataset.sid;
    this.link = item.querySelector("a");
    this.name = this.link.textContent;
    // By their names: unread, state, chars, perhaps about.
    this.cells = Object.fromEntries([...item.querySelectorAll("span")].map((cell) => [cell.className, cell]));
    this.about = this.cells.about?.textContent ?? "";
  }

  choose(isChosen) {
    if (isChosen) this.link.setAttribute("aria-current", "true");
    else this.link.removeAttribute("aria-current");
    if (isChosen) this.link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // Numbers are written when they are due, another state at once.
  show({ state, chars, urgent }, unread, isDue) {
    if (!isDue && state === this.state) return;
    if (state !== this.state) this.item.dataset.state = this.state = state;
    if (unread !== this.unread) this.cells.unread.dataset.count = this.unread = unread;
    write(this.cells.unread, unread > MOST ? `${MOST}+` : String(unread));
    write(this.cells.state, state === "streaming" ? "writing" : "idle");
    write(this.cells.chars, (chars < MILLION ? number : short).format(chars));
    if (this.about) write(this.cells.about, (state === "idle" && urgent?.d?.text) || this.about);
  }
}
