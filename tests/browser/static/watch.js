// watch.js - as simple a page as can be made with the client: it shows all that its streams have.

import { connect } from "../../streams/client.js";

const streams = connect("/streams");
const shown = document.getElementById("connection");
const sections = [...document.querySelectorAll("section")];
const texts = new Map(); // id of a part -> the text that was drawn last

window.statuses = []; // of the connection, in order

function add(parent, name) {
  return parent.appendChild(document.createElement(name));
}

function draw(box, { messages }) {
  while (box.children.length > messages.length) box.lastChild.remove();
  messages.forEach((message, at) => {
    let article = box.children[at] ?? add(box, "article");
    if (article.dataset.mid !== message.mid) article.replaceChildren();
    Object.assign(article.dataset, { mid: message.mid, role: message.role, status: message.status });
    while (article.children.length > message.parts.length) article.lastChild.remove();
    message.parts.forEach((part, number) => drawPart(article.children[number] ?? add(article, "pre"), part));
  });
}

function drawPart(element, { id, kind, text }) {
  if (!text.startsWith(texts.get(id) ?? "")) console.error(`part ${id} did not grow: it was`, texts.get(id), "and is", text);
  texts.set(id, text);
  element.dataset.kind = kind;
  if (element.textContent !== text) element.textContent = text;
}

function follow() {
  shown.textContent = streams.status;
  window.statuses.push(streams.status);
}

function focus() {
  const sid = location.hash.slice(1);
  if (sid) streams.focus(sid === "none" ? [] : [sid]);
}

for (const section of sections) {
  const stream = streams.open(section.dataset.sid);
  const box = section.querySelector(".messages");
  stream.subscribe(() => draw(box, stream.snapshot()));
  section.querySelector("button").addEventListener("click", () => stream.cancel());
}
streams.activity.subscribe(() => {
  const activity = streams.activity.snapshot();
  for (const section of sections) {
    const { state, chars } = activity.get(section.dataset.sid);
    section.querySelector(".activity").textContent = `${state} ${chars}`;
  }
});
streams.subscribe(follow);
follow();
focus();
addEventListener("hashchange", focus);
