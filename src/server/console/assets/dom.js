// Elements, lists, and how values are written. All texts from the cluster pass through here, as text and never as markup.

/** An element. Properties: `class`, `on` (listeners by event), else attributes; `false` and `null` leave one out. Strings become text. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'on') for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === 'class') element.className = value;
    else if (value !== false && value != null) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Sets a text, if it is another one. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

export function setAttribute(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Makes the children of `parent` those of `items`. A child whose key is still there stays, with its focus and its selection, and is only
 * updated: `make(item)` makes one, `update(child, item)` fills it.
 */
export function keyed(parent, items, key, make, update) {
  const old = parent.keyed ?? new Map();
  const now = new Map();
  for (const item of items) {
    const id = key(item);
    if (now.has(id)) continue;
    const child = old.get(id) ?? make(item);
    now.set(id, child);
    update(child, item);
  }
  // First: a child that is moved because another one went would lose its focus.
  const kept = new Set(now.values());
  for (const child of [...parent.childNodes]) if (!kept.has(child)) child.remove();
  let place = parent.firstChild;
  for (const child of now.values()) {
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
  parent.keyed = now;
}

/** A duration in at most two units. */
export function duration(ms) {
  if (ms == null) return '';
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Seconds of a measurement, in the unit that suits. */
export function seconds(value) {
  if (value == null || Number.isNaN(value)) return '–';
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return `${value.toFixed(1)} s`;
}

export const count = (number) => (number == null ? '–' : number.toLocaleString('en'));

export function bytes(number) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString('en-GB');

export function moment(ms) {
  const date = new Date(ms);
  return `${date.toLocaleDateString('en-CA')} ${date.toLocaleTimeString('en-GB')}`;
}

/** The address within the page of a lock, a folder, a session. */
export const lockAddress = (name) => `#/lock/${encodeURIComponent(name)}`;
export const folderAddress = (prefix) => (prefix ? `#/locks/${encodeURIComponent(prefix)}` : '#/locks');
export const sessionAddress = (id) => `#/session/${id}`;

/** A name for people: control characters would hide what it is. */
export const visible = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
