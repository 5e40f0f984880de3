// Elements without innerHTML: what comes from outside is text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element with attributes, listeners (`onclick`) and children. */
export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** The same for SVG. */
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Sets the text of an element if it changed: a reader of screens is not told the same twice. */
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

/** The colour that a variable of the style sheet has now. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Makes the children of a parent those of a list: by key, kept where they are, made and removed where needed. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    if (child === before) before = before.nextElementSibling;
    else parent.insertBefore(child, before);
    update(child, item);
  }
  for (const child of old.values()) {
    child.dispatchEvent(new Event("removed"));
    child.remove();
  }
}
