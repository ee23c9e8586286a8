// SPDX-License-Identifier: Apache-2.0
// Elements from descriptions, and the least change from one tree to the next: what stays
// keeps focus, selection and scroll, and nothing flickers.

export type Child = Node | string | null | undefined | false | Child[];

/** An element. `keep` marks one whose inside others draw. */
export function h(tag: string, attributes: Record<string, string | number | boolean | undefined> = {}, ...children: Child[]): HTMLElement {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element: Element, children: Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child) element.append(child);
  }
}

/** Makes what is in `old` like what is in `wanted`, which is used up. */
export function morph(old: Element, wanted: Element): void {
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && name !== "style") old.removeAttribute(name);
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (wanted.hasAttribute("data-keep")) return;
  const after = [...wanted.childNodes];
  for (const [index, node] of after.entries()) {
    const before = old.childNodes[index];
    if (!before) {
      old.append(node);
    } else if (before.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) {
      if (before.textContent !== node.textContent) before.textContent = node.textContent;
    } else if (before instanceof Element && node instanceof Element && alike(before, node)) {
      morph(before, node);
    } else {
      old.replaceChild(node, before);
    }
  }
  while (old.childNodes.length > after.length) old.lastChild?.remove();
}

function alike(a: Element, b: Element): boolean {
  return a.tagName === b.tagName && a.getAttribute("data-key") === b.getAttribute("data-key");
}

/** Replaces the children of `place`. */
export function show(place: Element, ...children: Child[]): void {
  const wanted = place.cloneNode(false) as Element;
  add(wanted, children);
  morph(place, wanted);
}
