// Elements are made here and nowhere else, and text only ever becomes text: no markup is parsed on this page.

// What could make one name look like another: controls, invisible marks, changes of direction.
const TRICKS = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu;

export const $ = (id) => document.getElementById(id);

export function plain(value) {
  return String(value ?? "").replace(TRICKS, (mark) => `\\u{${mark.codePointAt(0).toString(16)}}`);
}

export function el(tag, { className, text, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = plain(text);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : plain(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function button(text, className, run, label) {
  const made = el("button", { type: "button", className, text, "aria-label": label });
  made.addEventListener("click", run);
  return made;
}

export function write(node, text) {
  const wanted = plain(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function show(node, wanted) {
  if (node.hidden === wanted) node.hidden = !wanted;
}

// A list whose elements stay the same objects from one look to the next, so that focus and pointer stay where
// they are. `make(item)` gives an element; `update(element, item)` writes what may have changed.
export function keyed(list, items, key, make, update) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let at = list.firstElementChild;
  for (const item of items) {
    const id = String(key(item));
    let child = known.get(id);
    known.delete(id);
    if (!child) {
      child = make(item);
      child.dataset.key = id;
    }
    update(child, item);
    if (child === at) at = at.nextElementSibling;
    else list.insertBefore(child, at);
  }
  for (const child of known.values()) child.remove();
}

export function part(row, name) {
  return row.querySelector(`[data-part="${name}"]`);
}
