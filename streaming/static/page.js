// page.js - moves the updates of a streamed page to the place they are for.
//
// Include it once, in the head of a streamed page:
//
//     <script type="module" async src="{{ url_for('streaming.static', filename='page.js') }}"></script>
//
// Keep `async`: without it a module script runs when the document has ended, so that every update would wait for the
// last one. With it the script runs as soon as it is here, early or late, and does not keep the parser waiting; updates
// that came before it are applied when it starts. Nothing is inline: `script-src 'self'` is enough as a content security
// policy. Without JavaScript the page shows every boundary as it was first rendered.
//
// An update is `<template data-boundary="N">`; its place is what stands between the comments `<!--b:N-->` and
// `<!--/b:N-->`. Comments, because they may stand anywhere, in a table or a list too. They stay for the next update.

const BOUNDARY_COMMENT = /^(\/?)b:(\d+)$/;

// Number of a boundary -> its comments, {start, end}. Filled on demand.
const places = new Map();
// Content of a template that was applied -> the comment before which it belongs.
const destinations = new WeakMap();

function isUsable(place) {
  return Boolean(place?.start?.isConnected && place.end?.isConnected);
}

function collectPlaces() {
  places.clear();
  const walker = document.createTreeWalker(document, NodeFilter.SHOW_COMMENT);
  while (walker.nextNode()) {
    const found = BOUNDARY_COMMENT.exec(walker.currentNode.data);
    if (found) {
      const [, slash, number] = found;
      const place = places.get(number) ?? {};
      place[slash ? "end" : "start"] = walker.currentNode;
      places.set(number, place);
    }
  }
}

// The comments of a boundary; undefined if they are not in the page.
function findPlace(number) {
  if (!isUsable(places.get(number))) collectPlaces();
  const place = places.get(number);
  return isUsable(place) ? place : undefined;
}

// A range, since the comments need not be siblings: in `<table><!--b:0--><tr>` the parser puts a tbody between them.
function empty({ start, end }) {
  const range = document.createRange();
  range.setStartAfter(start);
  range.setEndBefore(end);
  range.deleteContents();
}

// Move what a template's content has now. An element that is still open goes too: the parser goes on to fill it where
// it is then.
function moveContent(content) {
  destinations.get(content).before(content);
}

// Apply an update. Its template may be open still, and nothing says when it ends: for a long time nothing need follow
// it. So what is there is shown at once, and what the parser adds to the template's content later is moved as it comes.
function apply(template) {
  const place = findPlace(template.dataset.boundary);
  if (!place) return;
  empty(place);
  destinations.set(template.content, place.end);
  moveContent(template.content);
  observer.observe(template.content, { childList: true });
  template.remove();
}

// Records are in the order in which things happened, so a late part of one update is moved before the next is applied.
function handle(records) {
  for (const { target, addedNodes } of records) {
    if (destinations.has(target)) {
      moveContent(target);
      continue;
    }
    for (const node of addedNodes) {
      if (node instanceof HTMLTemplateElement && node.dataset.boundary) apply(node);
    }
  }
}

// The end of the document can be reported before its last mutations are.
function finish() {
  handle(observer.takeRecords());
  observer.disconnect();
}

const observer = new MutationObserver(handle);
for (const template of document.querySelectorAll("template[data-boundary]")) apply(template);
if (document.readyState === "loading") {
  observer.observe(document, { childList: true, subtree: true });
  document.addEventListener("DOMContentLoaded", finish);
}
