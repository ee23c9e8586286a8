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
  let at = old.firstChild;
  for (const node of [...wanted.childNodes]) {
    const before = counterpart(at, node);
    if (!before) {
      old.insertBefore(node, at);
      continue;
    }
    while (at !== before) at = without(at!);
    at = before.nextSibling;
    if (before instanceof Element) morph(before, node as Element);
    else if (before.textContent !== node.textContent) before.textContent = node.textContent;
  }
  while (at) at = without(at);
}

/**
 * What becomes `node`, of the children from `at` on. One with a key is looked for behind
 * others, so that a section that comes or goes above it leaves it alone: a click that had
 * begun in an element that is replaced is lost.
 */
function counterpart(at: ChildNode | null, node: Node): ChildNode | null {
  if (!(node instanceof Element)) return at?.nodeType === node.nodeType ? at : null;
  for (let of = at; of; of = of.nextSibling) {
    if (of instanceof Element && alike(of, node)) return of;
    if (!node.hasAttribute("data-key")) return null;
  }
  return null;
}

/** Removes it; what stood behind it is left. */
function without(node: ChildNode): ChildNode | null {
  const next = node.nextSibling;
  node.remove();
  return next;
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
