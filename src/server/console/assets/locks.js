// The tree of locks, the search, and the page of one lock.

import {
  byId, count, duration, el, folderAddress, keyed, lockAddress, moment, sessionAddress, setAttribute, setClass, visible, write,
} from './dom.js';
import { call, nodeNow } from './net.js';
import { eventsOf } from './feed.js';

/** Folders that are open at a time: each shows a page of a hundred at the most. */
const OPEN_MAX = 5;
/** Time over which hand-overs are counted. */
const OVER_MS = 10_000;

const since = (time) => (time ? duration(nodeNow() - time) : '');

function holderText(lock) {
  if (!lock.holder_count) return lock.delay_ms ? `closed for ${duration(lock.delay_ms)} (lock-delay)` : 'free';
  const first = visible(lock.holders[0]?.label || 'unnamed');
  return lock.holder_count === 1 ? first : `${first} and ${count(lock.holder_count - 1)} more`;
}

const HEAD = [['', 'Name'], ['c-holder', 'Holder'], ['c-mode', 'Mode'], ['c-time number', 'Held for'], ['c-time c-lease number', 'Lease left'], ['c-queue number', 'Waiting'], ['c-time wide number', 'Longest wait']];

function table(caption, head = HEAD) {
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
function pagerRow(level, change) {
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
    /** What is shown of each level: the cursors of the pages before, and the page. */
    this.levels = new Map([[root, { cursors: [], data: null }]]);
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
    for (const [prefix, level] of [...this.levels]) {
      const cursor = level.cursors.at(-1) ?? {};
      const data = await call('level', { prefix, ...cursor });
      if (level.cursors.at(-1) === cursor || (!level.cursors.length && !cursor.after_lock)) level.data = data;
    }
    this.fail('');
  }

  fail(text) {
    this.note.hidden = !text;
    write(this.note, text);
  }

  draw() {
    const items = [];
    const add = (prefix, depth) => {
      const level = this.levels.get(prefix);
      for (const { lock, folder } of level?.data?.children ?? []) {
        const name = lock?.name ?? folder.prefix;
        items.push({ id: `${lock ? 'l' : 'f'}${prefix}\n${name}`, lock, folder, depth, text: name.slice(prefix.length) });
        if (folder && this.levels.has(folder.prefix)) add(folder.prefix, depth + 1);
      }
      if (level?.data && (level.data.more || level.cursors.length)) items.push({ id: `p${prefix}`, prefix, level });
    };
    add(this.root, 0);
    const make = (item) => (item.level ? pagerRow(item.level, (by) => this.page(item.prefix, by)) : makeRow());
    keyed(this.body, items, (item) => item.id, make, (row, item) => this.fill(row, item));
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
    } else {
      this.levels.set(prefix, { cursors: [], data: null });
      // The one that was opened first, and is not around the new one, is closed.
      const others = [...this.levels.keys()].filter((open) => open !== this.root && !prefix.startsWith(open));
      if (this.levels.size > OPEN_MAX + 1 && others.length) this.toggle(others[0]);
      this.again?.();
    }
    this.draw();
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
    this.text = text;
    this.everyMs = 5000;
    const [list, body] = table('Found locks');
    [this.list, this.body] = [list, body];
    this.note = el('p', { class: 'note' }, 'Searching …');
    this.element = el('div', {}, el('div', { class: 'path' }, el('a', { href: '#/locks' }, 'locks'), el('span', {}, '›'), el('span', {}, 'search')), el('div', { class: 'head' }, el('h1', {}, `“${visible(text)}”`)), el('div', { class: 'panel' }, list, this.note));
    this.title = `Search: ${text}`;
    this.feed = { prefix: '' };
    this.locks = [];
  }

  async refresh() {
    let [locks, looked, after] = [[], 0, undefined];
    do {
      const found = await call('search', { text: this.text, ...(after ? { after } : {}) });
      locks = locks.concat(found.locks).slice(0, 100);
      looked += found.looked;
      after = found.more_after;
    } while (after && locks.length < 100 && this.element.isConnected);
    this.locks = locks;
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

function fact(name, value, more = '') {
  return el('div', {}, el('dt', {}, name), el('dd', { class: more }, value));
}

const WAITER_HEAD = [['c-token number', 'Place'], ['', 'Waiter'], ['c-mode', 'Mode'], ['c-time number', 'Waits for'], ['c-time number wide', 'Gives up in']];
const HOLDER_HEAD = [['c-token is-token number', 'Token'], ['', 'Holder'], ['c-mode', 'Mode'], ['c-time number', 'Held for'], ['c-lease-bar number', 'Lease left'], ['c-force', '']];

/** The page of one lock. */
export class LockPage {
  constructor(name) {
    this.name = name;
    this.everyMs = 1000;
    this.title = name;
    this.feed = { lock: name };
    this.opened = nodeNow();
    /** Cursors of the pages of the queue before this one. */
    this.cursors = [];
    /** The holders that were seen, by token; and the longest tenure of one that has gone. */
    this.seen = new Map();
    this.longest = null;
    this.state = el('span', { class: 'tag' }, '…');
    this.kind = el('span', { class: 'tag', hidden: true }, 'entry of another protocol');
    this.note = el('p', { class: 'note', hidden: true });
    this.facts = el('dl', { class: 'facts' });
    const [holders, holdersBody] = table('Holders', HOLDER_HEAD);
    const [queue, queueBody] = table('Queue', WAITER_HEAD);
    [this.holders, this.queue] = [holdersBody, queueBody];
    this.holdersNote = el('p', { class: 'note' });
    this.queueNote = el('p', { class: 'note' });
    this.holdersTable = holders;
    this.queueTable = queue;
    this.queueCount = el('span', { class: 'soft' });
    this.pager = pagerRow({ cursors: [] }, (by) => this.page(by));
    this.pagerTable = el('table', { class: 'grid', hidden: true }, el('tbody', {}, this.pager));
    this.data = el('pre', { class: 'data', tabindex: 0 });
    this.dataBlock = el('section', { class: 'panel block', hidden: true }, el('h2', {}, 'Data'), this.data);
    this.element = el(
      'div', {}, pathOf(name, false), el('div', { class: 'head' }, el('h1', {}, visible(name)), this.state, this.kind), this.note,
      el('section', { class: 'panel' }, el('h2', {}, 'Held by'), holders, this.holdersNote, this.facts),
      el('section', { class: 'panel block' }, el('h2', {}, 'Queue', this.queueCount), queue, this.queueNote, this.pagerTable),
      this.dataBlock,
    );
  }

  async refresh() {
    const cursor = this.cursors.at(-1);
    const { lock, may_force } = await call('lock', { name: this.name, ...(cursor ? { waiters_after: cursor.ticket } : {}) });
    [this.lock, this.mayForce] = [lock, may_force];
    this.fail('');
    this.remember(lock);
  }

  /** Notes who holds it, to know whose tenure was the longest. */
  remember(lock) {
    const now = new Map(lock.holders.map((holder) => [holder.token, holder]));
    for (const [token, holder] of this.seen) {
      if (!now.has(token)) this.lasted(holder, nodeNow());
    }
    this.seen = now;
  }

  lasted(holder, until) {
    const time = until - holder.since;
    if (!this.longest || time > this.longest.time) this.longest = { time, label: holder.label, token: holder.token };
  }

  fail(text) {
    this.note.hidden = !text;
    write(this.note, text);
  }

  page(by) {
    if (by < 0) this.cursors.pop();
    else if (this.lock?.waiters.length) this.cursors.push({ ticket: this.lock.waiters.at(-1).ticket, before: this.before() + this.lock.waiters.length });
    this.again?.();
  }

  before() {
    return this.cursors.at(-1)?.before ?? 0;
  }

  draw() {
    const lock = this.lock;
    if (!lock) return;
    const free = !lock.holder_count;
    write(this.state, free ? (lock.delay_ms ? 'closed by a lock-delay' : 'free') : `${lock.mode}, held by ${count(lock.holder_count)}`);
    setClass(this.state, free ? 'tag' : 'tag accent');
    this.kind.hidden = !lock.is_entry;
    this.drawHolders(lock);
    this.drawQueue(lock);
    this.dataBlock.hidden = !lock.data;
    if (lock.data) {
      const { bytes, text } = lock.data;
      write(this.dataBlock.firstChild, `Data, ${count(bytes)} byte${bytes === 1 ? '' : 's'}${lock.keeps_data ? ', kept after release' : ''}`);
      write(this.data, text == null ? '(no text)' : visible(text.replaceAll('\n', '\u2424')).replaceAll('\u2424', '\n'));
    }
    this.drawFacts(lock, eventsOf(this.name));
  }

  drawHolders(lock) {
    const make = (holder) => {
      const row = el('tr', {}, ...HOLDER_HEAD.map(([name]) => el('td', { class: name })));
      const who = el('a', { href: sessionAddress(holder.session), 'data-move': true }, visible(holder.label || 'unnamed'));
      row.revoked = el('span', { class: 'tag warn', hidden: true });
      row.under = el('div', { class: 'under' });
      row.children[0].append(holder.token);
      row.children[1].append(who, ' ', row.revoked, row.under);
      row.bar = el('i');
      row.left = el('span');
      row.lease = el('span', { class: 'lease', 'aria-hidden': 'true' }, row.bar);
      row.children[4].append(row.lease, row.left);
      row.most = 0;
      row.force = el('button', { class: 'small danger', type: 'button', on: { click: () => askToForce(lock, holder) } }, 'Take back …');
      row.children[5].append(row.force);
      return row;
    };
    keyed(this.holders, lock.holders, (holder) => holder.token, make, (row, holder) => {
      write(row.children[2], holder.mode);
      write(row.children[3], since(holder.since));
      write(row.left, duration(holder.remaining_ms));
      // The whole lease is not known here: the longest that was left.
      row.most = Math.max(row.most, holder.remaining_ms, 1);
      row.bar.style.width = `${Math.round((holder.remaining_ms / row.most) * 100)}%`;
      row.lease.classList.toggle('is-low', holder.remaining_ms < row.most * 0.25);
      row.revoked.hidden = !holder.revoked;
      write(row.revoked, holder.revoked ? `revoked: ${visible(holder.revoked)}` : '');
      write(row.under, `lease ${duration(holder.remaining_ms)}`);
      row.force.hidden = !this.mayForce;
    });
    this.holdersTable.hidden = !lock.holders.length;
    const more = lock.holder_count - lock.holders.length;
    write(this.holdersNote, lock.holders.length ? (more > 0 ? `and ${count(more)} more` : '') : lock.delay_ms ? `Nobody. A lock-delay keeps it closed for another ${duration(lock.delay_ms)}.` : 'Nobody.');
    this.holdersNote.hidden = !this.holdersNote.textContent;
  }

  drawQueue(lock) {
    const make = (waiter) => {
      const row = el('tr', {}, ...WAITER_HEAD.map(([name]) => el('td', { class: name })));
      row.children[1].append(el('a', { href: sessionAddress(waiter.session), 'data-move': true }, visible(waiter.label || 'unnamed')));
      return row;
    };
    let place = this.before();
    keyed(this.queue, lock.waiters, (waiter) => waiter.ticket, make, (row, waiter) => {
      place += 1;
      const texts = [count(place), null, waiter.mode, since(waiter.since), waiter.remaining_ms == null ? 'never' : duration(waiter.remaining_ms)];
      texts.forEach((text, at) => text != null && write(row.children[at], text));
    });
    write(this.queueCount, lock.queue_length ? count(lock.queue_length) : '');
    this.queueTable.hidden = !lock.waiters.length;
    write(this.queueNote, lock.waiters.length ? '' : lock.queue_length ? 'This page of the queue is empty now.' : 'Nobody waits.');
    this.queueNote.hidden = !this.queueNote.textContent;
    const more = this.before() + lock.waiters.length < lock.queue_length;
    this.pagerTable.hidden = !more && !this.cursors.length;
    this.pager.fill({ cursors: this.cursors, data: { more } });
  }

  drawFacts(lock, events) {
    const now = nodeNow();
    const over = Math.min(OVER_MS, Math.max(now - this.opened, 1000));
    const granted = events.reduce((sum, event) => sum + (now - event.at < over ? (event.granted ?? 0) : 0), 0);
    let longest = this.longest;
    for (const holder of lock.holders) {
      const time = now - holder.since;
      if (!longest || time > longest.time) longest = { time, label: holder.label, token: holder.token };
    }
    const facts = [
      ['Hand-overs a second', (granted * 1000 / over).toFixed(1)],
      ['Longest wait now', lock.waiters.length && !this.cursors.length ? since(lock.waiters[0].since) : '–'],
      ['Longest holder seen', longest ? `${visible(longest.label || 'unnamed')}, ${duration(longest.time)}, token ${longest.token}` : '–'],
    ];
    keyed(this.facts, facts, ([name]) => name, ([name]) => fact(name, ''), (div, [, value]) => write(div.lastChild, value));
  }
}

/** What the dialog is about. */
let asked = null;

function askToForce(lock, holder) {
  asked = { lock: lock.name, token: holder.token };
  write(byId('force-lock'), visible(lock.name));
  write(byId('force-holder'), `from ${visible(holder.label || 'unnamed')}, token ${holder.token}, held since ${moment(holder.since)}`);
  byId('force-error').hidden = true;
  // Such a lock opens at once, whatever is chosen.
  write(byId('force-told'), lock.is_entry ? 'the audit trail gets it' : 'its holder and the audit trail get it');
  byId('force-entry').hidden = !lock.is_entry;
  byId('force-choice').hidden = lock.is_entry;
  byId('force-form').reset();
  byId('force').showModal();
  byId('force-reason').focus();
}

/** Makes the dialog of a forced release work. `done` is called after one. */
export function start(done) {
  byId('force-cancel').addEventListener('click', () => byId('force').close());
  byId('force-form').addEventListener('submit', async (event) => {
    event.preventDefault();
    const [error, go] = [byId('force-error'), byId('force-go')];
    go.disabled = true;
    try {
      const body = { name: asked.lock, token: asked.token, reason: byId('force-reason').value, now: byId('force-now').checked };
      const { forced } = await call('force-release', body);
      if (forced.length === 0) throw new Error('it was no longer held by this token: nothing was changed');
      byId('force').close();
      done();
    } catch (failure) {
      error.hidden = false;
      write(error, failure.message);
    }
    go.disabled = false;
  });
}
