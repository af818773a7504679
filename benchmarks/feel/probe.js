// probe.js - what a page feels, seen from within: frames, growth of the visible text, and keys. It is put into the page by
// benchmarks/feel.py before the page's own scripts. Times are milliseconds of `performance.now()`.

globalThis.feel = (() => {
  const found = { frames: [], grown: [], keys: [], events: [], tasks: [], lengths: [] };
  // Its task runs when the frame is done: what was drawn in it is on its way to the screen.
  const behind = new MessageChannel();
  let pressed = []; // keys since the last frame began
  let inFrame = [];
  let hasGrown = false;
  let isTraced = false;
  let isSettled = true;
  let at = 0;

  behind.port1.onmessage = () => settle();

  // Into the trace as well: a page that is too busy answers no question.
  function note(kind, value) {
    found[kind].push(value);
    if (isTraced) performance.mark(`feel:${kind} ${value}`);
  }

  // What the last frame has shown: looked at behind it, or before the next one if the page is too busy to come to that.
  function settle() {
    if (isSettled) return;
    isSettled = true;
    if (hasGrown) note("grown", at);
    hasGrown = false;
    for (const [time, delay] of inFrame) note("keys", [time, delay, performance.now() - time]);
    inFrame = [];
    if (isTraced && found.frames.length % 30 === 1) note("lengths", [at, textLength()]);
  }

  function frame(time) {
    settle();
    [at, isSettled] = [time, false];
    note("frames", time);
    inFrame = pressed;
    pressed = [];
    behind.port2.postMessage(0);
    requestAnimationFrame(frame);
  }

  // What is in view, so neither hidden streams nor the page around.
  function watch(grow) {
    const options = { childList: true, characterData: true, subtree: true };
    const shown = document.querySelector("#paper > :not([hidden])");
    if (shown) new MutationObserver(grow).observe(shown, options);
  }

  function press({ timeStamp }) {
    pressed.push([timeStamp, performance.now() - timeStamp]);
  }

  const lastPart = () => [...document.querySelectorAll("#paper > :not([hidden]) [data-part]")].at(-1);

  function textLength() {
    let length = 0;
    const walker = document.createTreeWalker(lastPart() ?? new Text(), NodeFilter.SHOW_TEXT);
    for (let node = walker.currentNode; node; node = walker.nextNode()) length += node.length ?? 0;
    return length;
  }

  function observe(type, kind, options) {
    const take = (entries) => entries.getEntries().forEach(({ duration }) => note(kind, duration));
    new PerformanceObserver(take).observe({ type, ...options });
  }

  return {
    // For traces: says in them when the visible text has grown, and does nothing else.
    mark() {
      watch(() => performance.mark("feel:grew"));
    },
    start(traced = false) {
      isTraced = traced;
      watch(() => (hasGrown = true));
      addEventListener("keydown", press, { capture: true });
      observe("event", "events", { durationThreshold: 16 });
      observe("longtask", "tasks", {});
      requestAnimationFrame(frame);
    },
    clear() {
      for (const list of Object.values(found)) list.length = 0;
    },
    read: () => found,
    text: () => lastPart()?.textContent ?? "",
    textLength,
  };
})();
