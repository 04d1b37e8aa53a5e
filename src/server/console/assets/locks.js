// The tree of locks and the search.

import { count, duration, el, folderAddress, keyed, lockAddress, setAttribute, visible, write } from './dom.js';
import { call, nodeNow } from './net.js';

/** Folders that can be open at a time: each shows a page of a hundred at the most. */
const OPEN_MAX = 200;
/** A search is repeated after this time, or after this multiple of what it took: a table of millions is not searched all the time. */
const SEARCH_MS = 5000;
const SEARCH_PAUSE = 10;

const since = (time) => (time ? duration(nodeNow() - time) : '');

function holderText(lock) {
  if (!lock.holder_count) return lock.delay_ms ? `closed for ${duration(lock.delay_ms)} (lock-delay)` : 'free';
  const first = visible(lock.holders[0]?.label || 'unnamed');
  return lock.holder_count === 1 ? first : `${first} and ${count(lock.holder_count - 1)} more`;
}

const HEAD = [['', 'Name'], ['c-holder', 'Holder'], ['c-mode', 'Mode'], ['c-time number', 'Held for'], ['c-time c-lease number', 'Lease left'], ['c-queue number', 'Waiting'], ['c-time wide number', 'Longest wait']];

export function table(caption, head = HEAD) {
  const body = el('tbody');
  const row = el('tr', {}, ...head.map(([name, text]) => el('th', { class: name, scope: 'col' }, text)));
  return [el('table', { class: head === HEAD ? 'grid list tree' : 'grid list', 'aria-label': caption }, el('thead', {}, row), body), body];
}

/** A row of the tree or of a search: the cells of a lock or a folder. */
function makeRow() {
  const row = el('tr', {}, ...HEAD.map(([name]) => el('td', { class: name })));
  const [name, ...cells] = row.children;
  row.cells_ = cells;
  row.indent = el('span', { class: 'indent' });
  row.under = el('div', { class: 'under' });
  name.append(el('div', { class: 'name' }, row.indent), row.under);
  row.first = name.firstChild;
  return row;
}

function indent(row, depth) {
  row.indent.style.width = `${depth * 16}px`;
  row.under.style.paddingLeft = `${(depth + 1) * 16}px`;
}

function fillLock(row, lock, text, depth) {
  if (!row.link) row.first.append((row.link = el('a', { 'data-move': true })));
  setAttribute(row.link, 'href', lockAddress(lock.name));
  setAttribute(row.link, 'title', visible(lock.name));
  write(row.link, visible(text) || '(empty)');
  indent(row, depth);
  const [holder, wait] = [lock.holders[0], lock.waiters[0]];
  const held = holder ? since(holder.since) : '';
  const texts = [holderText(lock), lock.mode ?? '', held, holder ? duration(holder.remaining_ms) : '', lock.queue_length ? count(lock.queue_length) : '', wait ? since(wait.since) : ''];
  row.cells_.forEach((cell, at) => write(cell, texts[at]));
  row.cells_[0].classList.toggle('soft', !lock.holder_count);
  write(row.under, holderText(lock));
}

/** What is between two tree rows of one level: the pages of that level. */
export function pagerRow(level, change) {
  const row = el('tr', { class: 'pager-row' }, el('td', { colspan: HEAD.length }));
  const back = el('button', { class: 'small', type: 'button', on: { click: () => change(-1) } }, '‹ previous 100');
  const on = el('button', { class: 'small', type: 'button', on: { click: () => change(1) } }, 'next 100 ›');
  row.text = el('span', { class: 'soft' });
  row.firstChild.append(el('div', { class: 'pager' }, back, on, row.text));
  row.fill = (of) => {
    back.disabled = of.cursors.length === 0;
    on.disabled = !of.data?.more;
    write(row.text, `page ${of.cursors.length + 1}`);
  };
  row.fill(level);
  return row;
}

/** The tree of names below a prefix. Each level is asked for when it is opened, a page at a time. */
export class Tree {
  constructor(root) {
    this.root = root;
    this.everyMs = 2000;
    /** What is shown of each open level: the cursors of the pages before, and the page. */
    this.levels = new Map([[root, { cursors: [], data: null }]]);
    /** The levels that were shown when the tree was drawn last, with the rows of their folders. */
    this.drawn = new Map();
    const [list, body] = table('Locks');
    this.body = body;
    this.list = list;
    this.note = el('p', { class: 'note' });
    this.element = el('div', {}, ...(root ? [pathOf(root, true)] : []), el('div', { class: 'panel' }, list, this.note));
    this.element.addEventListener('keydown', (event) => this.key(event));
    this.title = root || 'Locks';
    this.feed = { prefix: root };
    this.fail('Loading …');
  }

  async refresh() {
    // Levels that are opened meanwhile come too.
    for (const [prefix, level] of this.levels) {
      if (level.data && !this.isSeen(prefix)) continue;
      const cursor = level.cursors.at(-1) ?? {};
      const data = await call('level', { prefix, ...cursor });
      if (level.cursors.at(-1) === cursor || (!level.cursors.length && !cursor.after_lock)) level.data = data;
      this.join(prefix, level);
    }
    this.fail('');
  }

  /** Folders may be joined otherwise than before: what is open below a folder stays seen. */
  join(prefix, level) {
    for (const { folder } of level.data?.children ?? []) {
      const isAround = folder && [...this.levels.keys()].some((open) => open !== folder.prefix && open.startsWith(folder.prefix));
      if (isAround && !this.levels.has(folder.prefix)) this.levels.set(folder.prefix, { cursors: [], data: null });
    }
  }

  /** Whether a row of the level, or of its folder, is on the screen: only such a level is asked for again. */
  isSeen(prefix) {
    if (prefix === this.root) return true;
    const rows = this.drawn.get(prefix);
    if (!rows) return false;
    const top = rows[0].getBoundingClientRect().top;
    const bottom = rows.at(-1).getBoundingClientRect().bottom;
    return bottom > -innerHeight && top < 2 * innerHeight;
  }

  fail(text) {
    this.note.hidden = !text;
    write(this.note, text);
  }

  draw() {
    const items = [];
    const add = (prefix, depth, within) => {
      const level = this.levels.get(prefix);
      for (const { lock, folder } of level?.data?.children ?? []) {
        const name = lock?.name ?? folder.prefix;
        const isOpen = Boolean(folder && this.levels.has(folder.prefix));
        items.push({ id: `${lock ? 'l' : 'f'}${within}\n${name}`, lock, folder, depth, text: name.slice(prefix.length), prefix: isOpen ? folder.prefix : prefix });
        if (isOpen) add(folder.prefix, depth + 1, folder.prefix);
      }
      if (level?.data && (level.data.more || level.cursors.length)) items.push({ id: `p${prefix}`, prefix, level });
    };
    add(this.root, 0, this.root);
    const make = (item) => (item.level ? pagerRow(item.level, (by) => this.page(item.prefix, by)) : makeRow());
    this.drawn = new Map();
    keyed(this.body, items, (item) => item.id, make, (row, item) => {
      this.drawn.set(item.prefix, [...(this.drawn.get(item.prefix) ?? []).slice(0, 1), row]);
      this.fill(row, item);
    });
    this.list.hidden = items.length === 0;
    if (this.levels.get(this.root).data && items.length === 0) {
      this.fail(this.root ? 'No lock has a name that begins so.' : 'No lock is held, is awaited or has data. This takes one for a minute: lockkeeper lock jobs/nightly -- sleep 60');
    }
  }

  fill(row, { lock, folder, level, depth, text }) {
    if (level) row.fill(level);
    else if (lock) fillLock(row, lock, text, depth);
    else {
      const open = this.levels.has(folder.prefix);
      if (!row.fold) row.first.append((row.fold = el('button', { class: 'fold', type: 'button', 'data-move': true, on: { click: () => this.toggle(folder.prefix) } })));
      setAttribute(row.fold, 'aria-expanded', String(open));
      setAttribute(row.fold, 'title', visible(folder.prefix));
      write(row.fold, visible(text));
      indent(row, depth);
      const more = folder.more ? '+' : '';
      const locks = `${count(folder.locks)}${more} lock${folder.locks === 1 && !more ? '' : 's'}, ${count(folder.held)}${more} held`;
      write(row.cells_[0], locks);
      row.cells_[0].classList.add('soft');
      write(row.cells_[4], folder.waiters ? `${count(folder.waiters)}${more}` : '');
      write(row.under, locks);
    }
  }

  toggle(prefix) {
    if (this.levels.has(prefix)) {
      for (const open of [...this.levels.keys()]) if (open !== this.root && open.startsWith(prefix)) this.levels.delete(open);
    } else if (!this.hasRoom()) {
      this.fail(`${OPEN_MAX} folders are open: close one first.`);
    } else {
      this.levels.set(prefix, { cursors: [], data: null });
      this.again?.();
    }
    this.draw();
  }

  /** Whether another folder can be opened. Those that are not shown any more, on another page or without locks, give way. */
  hasRoom() {
    for (const open of [...this.levels.keys()]) {
      if (this.levels.size <= OPEN_MAX) break;
      if (open !== this.root && !this.drawn.has(open)) this.levels.delete(open);
    }
    return this.levels.size <= OPEN_MAX;
  }

  page(prefix, by) {
    const level = this.levels.get(prefix);
    const last = level.data?.children.at(-1);
    if (by < 0) level.cursors.pop();
    else if (last) level.cursors.push(last.lock ? { after_lock: last.lock.name } : { after_folder: last.folder.prefix });
    this.again?.();
  }

  key(event) {
    const fold = event.target.closest('.fold');
    if (event.key === 'ArrowRight' && fold?.getAttribute('aria-expanded') === 'false') fold.click();
    else if (event.key === 'ArrowLeft' && fold?.getAttribute('aria-expanded') === 'true') fold.click();
    else return;
    event.preventDefault();
  }
}

/** The folders of a name, as links. */
export function pathOf(name, isFolder) {
  const parts = [el('a', { href: '#/locks' }, 'locks')];
  for (let at = name.indexOf('/'); at >= 0; at = name.indexOf('/', at + 1)) {
    const prefix = name.slice(0, at + 1);
    const text = visible(prefix.slice(prefix.slice(0, -1).lastIndexOf('/') + 1));
    const isLast = isFolder && at === name.length - 1;
    parts.push(el('span', {}, '›'), isLast ? el('span', {}, text) : el('a', { href: folderAddress(prefix) }, text));
  }
  return el('div', { class: 'path' }, ...parts);
}

/** Locks whose names contain a text. The node looks at some thousands of names for each call. */
export class Search {
  constructor(text) {
    this.everyMs = SEARCH_MS;
    const [list, body] = table('Found locks');
    [this.list, this.body] = [list, body];
    this.note = el('p', { class: 'note' });
    this.heading = el('h1');
    this.element = el('div', {}, el('div', { class: 'path' }, el('a', { href: '#/locks' }, 'locks'), el('span', {}, '›'), el('span', {}, 'search')), el('div', { class: 'head' }, this.heading), el('div', { class: 'panel' }, list, this.note));
    this.feed = { prefix: '' };
    this.locks = [];
    this.find(text);
  }

  /** Finds another text. What was found for the one before stays until the first answer. */
  find(text) {
    this.text = text;
    this.title = `Search: ${text}`;
    write(this.heading, `“${visible(text)}”`);
    this.fail('Searching …');
  }

  async refresh() {
    const { text } = this;
    const began = performance.now();
    let [locks, looked, after] = [[], 0, undefined];
    do {
      const found = await call('search', { text, ...(after ? { after } : {}) });
      // Somebody types: another text is wanted by now.
      if (text !== this.text || !this.element.isConnected) return;
      locks = locks.concat(found.locks).slice(0, 100);
      looked += found.looked;
      after = found.more_after;
      this.locks = locks;
      this.draw();
    } while (after && locks.length < 100);
    this.everyMs = Math.max(SEARCH_MS, SEARCH_PAUSE * (performance.now() - began));
    const names = `${count(looked)} name${looked === 1 ? '' : 's'}`;
    this.fail(after ? `The first ${locks.length}; there may be more. A longer text finds fewer.` : `${count(locks.length)} found in ${names}.`);
  }

  fail(text) {
    write(this.note, text);
  }

  draw() {
    keyed(this.body, this.locks, (lock) => lock.name, makeRow, (row, lock) => fillLock(row, lock, lock.name, 0));
    this.list.hidden = this.locks.length === 0;
  }
}
