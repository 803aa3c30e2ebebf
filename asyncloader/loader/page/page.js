"use strict";
// The server sends each loader's panel as HTML once a second. Only what differs is changed, so
// that what has the focus or is selected stays.
const panels = document.getElementById("panels");
const list = document.getElementById("list");
const state = document.getElementById("state");
const hold = document.getElementById("hold");
let held = false;
let latest = null;

function renew(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  renewInside(old, fresh);
}

function renewInside(old, fresh) {
  const wanted = [...fresh.childNodes];
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
  wanted.forEach((child, at) => {
    if (at < old.childNodes.length) renew(old.childNodes[at], child);
    else old.append(child);
  });
}

function show(shown) {
  const fresh = document.createElement("main");
  for (const { key, html } of shown) {
    const section = document.createElement("section");
    section.id = key;
    section.tabIndex = -1;
    section.setAttribute("aria-labelledby", `${key}-title`);
    section.innerHTML = html;
    fresh.append(section);
  }
  if (!shown.length) fresh.innerHTML = '<p class="empty">No loader has run yet.</p>';
  renewInside(panels, fresh);
  const links = document.createElement("nav");
  for (const { key, title, summary } of shown) {
    const link = document.createElement("a");
    link.href = `#${key}`;
    link.textContent = `${title}: ${summary}`;
    links.append(link);
  }
  list.hidden = shown.length < 2;
  renewInside(list, links);
}

function say(text, isLost) {
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("lost", isLost);
}

hold.addEventListener("click", () => {
  held = !held;
  hold.setAttribute("aria-pressed", String(held));
  say(held ? "held: the numbers stand still" : "live", false);
  if (!held && latest) show(latest);
});

const events = new EventSource("events");
events.addEventListener("message", (message) => {
  latest = JSON.parse(message.data);
  if (held) return;
  say("live", false);
  show(latest);
});
events.addEventListener("error", () => {
  say("no connection: the program has ended, or is too busy to answer", true);
});
