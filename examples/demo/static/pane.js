// pane.js - where a reader is in what grows. The pane stays at the end, unless the reader has gone up from there.
//
// The observer of sizes runs when the browser has just laid out the page. So asking for heights there costs nothing;
// anywhere else it could make the browser lay out the page once more, for each token.

const NEAR = 32; // pixels from the end that count as the end
const TOUCH = 1_000; // milliseconds for which the wheel, a finger or a key moves what is shown

export class Pane {
  #isAtEnd = true;
  #top = 0;
  #touchedAt = -Infinity;

  constructor(element, button) {
    this.element = element;
    this.button = button;
    this.sizes = new ResizeObserver(() => this.#settle());
    this.sizes.observe(element);
    element.addEventListener("scroll", () => this.#look(), { passive: true });
    for (const type of ["wheel", "touchmove", "pointerdown", "keydown"]) {
      element.addEventListener(type, () => (this.#touchedAt = performance.now()), { passive: true });
    }
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
    if (this.#isAtEnd) this.element.scrollTop = this.element.scrollHeight;
    this.#top = this.element.scrollTop;
  }

  // Only a reader leaves the end. That the place is higher says nothing by itself: it is when old messages were taken out.
  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    if (scrollHeight - scrollTop - clientHeight <= NEAR) this.#isAtEnd = true;
    else if (scrollTop < this.#top - 1 && performance.now() - this.#touchedAt < TOUCH) this.#isAtEnd = false;
    this.#top = scrollTop;
    if (this.button.hidden !== this.#isAtEnd) this.button.hidden = this.#isAtEnd;
  }
}
