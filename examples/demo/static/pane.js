// pane.js - where a reader is in what grows. The pane stays at the end, unless the reader has gone up from there.
//
// The observer of sizes runs when the browser has just laid out the page. So asking for heights there costs nothing;
// anywhere else it could make the browser lay out the page once more, for each token.

const NEAR = 32; // pixels from the end that count as the end

export class Pane {
  #isAtEnd = true;
  #top = 0;
  #height = 0;

  constructor(element, button) {
    this.element = element;
    this.button = button;
    this.sizes = new ResizeObserver(() => this.#settle());
    this.sizes.observe(element);
    element.addEventListener("scroll", () => this.#look(), { passive: true });
    // Who opens something wants to see it; it grows downward.
    element.addEventListener("click", ({ target }) => target.closest("summary") && (this.#isAtEnd = false));
    // Where the browser goes by itself is where the end was when the key was pressed.
    element.addEventListener("keydown", ({ key }) => key === "End" && this.#toEnd());
    button.addEventListener("click", () => {
      this.#toEnd();
      element.focus({ preventScroll: true }); // the button is about to go
    });
  }

  // From its end on.
  show(content) {
    if (this.content) this.sizes.unobserve(this.content);
    this.content = content;
    this.element.replaceChildren(content);
    this.sizes.observe(content);
    this.#toEnd();
  }

  #toEnd() {
    this.#isAtEnd = true;
    this.#top = 0;
    this.#settle();
  }

  #settle() {
    this.#look();
    this.#height = this.element.scrollHeight;
    if (this.#isAtEnd) this.element.scrollTop = this.#height;
    this.#top = this.element.scrollTop;
  }

  // It is the reader who has moved up, unless the content has changed: then `#settle` follows.
  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    if (scrollHeight - scrollTop - clientHeight <= NEAR) this.#isAtEnd = true;
    else if (scrollHeight === this.#height && scrollTop < this.#top - 1) this.#isAtEnd = false;
    this.#top = scrollTop;
    if (this.button.hidden !== this.#isAtEnd) this.button.hidden = this.#isAtEnd;
  }
}
