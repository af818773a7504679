// text.js - a text that grows at its end, as many small blocks. A browser lays out a block again when text is appended
// to it: all in one block, each token would cost more the longer the answer is.
//
// A block ends behind a line break once it is long enough, else at a space, else anywhere but within a surrogate pair.
// Line breaks stay in the text of the block that they end: together the blocks are the text, to the character, and a
// line break at a block's end makes no empty line (`white-space: pre-wrap`).

const ENOUGH = 500; // UTF-16 units of a block that may end with a line
const AMPLE = 2_000; // of one that may end with a word
const MOST = 2_200;
const SHEET = 16; // blocks in a sheet; the browser passes over sheets that are off the screen

export class GrowingText {
  #box;
  #sheet;
  #text; // the Text node of the last block; nothing if the next text begins another
  #length = 0; // of that block
  drawn = 0;

  constructor(box) {
    this.#box = box;
  }

  // `text` begins with what is drawn already.
  grow(text) {
    for (let at = this.drawn; at < text.length; at = this.drawn) {
      const rest = text.slice(at, at + MOST + 1);
      const left = room(rest, this.#length);
      this.#append(rest.slice(0, left));
      if (left <= rest.length) [this.#text, this.#length] = [undefined, 0];
    }
  }

  #append(text) {
    if (this.#text) this.#text.appendData(text);
    else this.#startBlock(text);
    this.#length += text.length;
    this.drawn += text.length;
  }

  #startBlock(text) {
    if (!this.#sheet || this.#sheet.childElementCount === SHEET) this.#sheet = startDiv(this.#box, "sheet");
    this.#text = startDiv(this.#sheet, "block").appendChild(new Text(text));
  }
}

function startDiv(parent, name) {
  const div = document.createElement("div");
  div.className = name;
  return parent.appendChild(div);
}

// How many units of `text` still go into a block that has `length` of them. More than there are: it goes on after them.
function room(text, length) {
  const behind = (sign, least) => text.indexOf(sign, Math.max(0, least - length - 1)) + 1 || Infinity;
  const most = Math.max(1, MOST - length);
  const last = text.charCodeAt(most - 1);
  return Math.min(behind("\n", ENOUGH), behind(" ", AMPLE), last >= 0xd800 && last < 0xdc00 ? most + 1 : most);
}
