// The page of one lock: who holds it, why it is stuck, and who waits.

import { askToClose, askToForce, askToLift, askToRemove } from './acts.js';
import { clock, count, duration, el, keyed, moment, sessionAddress, setAttribute, setClass, visible, write } from './dom.js';
import { eventsOf } from './feed.js';
import { pagerRow, pathOf, table } from './locks.js';
import { call, nodeNow } from './net.js';

/** Time over which hand-overs are counted. */
const OVER_MS = 10_000;
/** A client renews after a third of its TTL. One that is silent for this share of it has missed a renewal. */
const SILENT_SHARE = 0.5;

const since = (time) => (time ? duration(nodeNow() - time) : '');
const nameOf = (label) => visible(label || 'unnamed');

function fact(name, value, more = '') {
  return el('div', {}, el('dt', {}, name), el('dd', { class: more }, value));
}

const WAITER_HEAD = [['c-token number', 'Place'], ['', 'Waiter'], ['c-mode', 'Mode'], ['c-time c-wait number', 'Waits for'], ['c-time number wide', 'Gives up in'], ['c-act', '']];
const HOLDER_HEAD = [['c-token is-token number', 'Token'], ['', 'Holder'], ['c-mode', 'Mode'], ['c-time number', 'Held for'], ['c-lease-bar number', 'Lease left'], ['c-act', '']];

/** Why the lock is held, or closed: in words, with what an operator can do about it. */
class Why {
  constructor() {
    this.title = el('h2', {}, '');
    this.facts = el('dl', { class: 'facts is-first' });
    this.verdict = el('p', { class: 'verdict' });
    const act = (text, ask) => el('button', { type: 'button', class: 'danger', hidden: true, on: { click: ask } }, text);
    this.force = act('Take back …', () => askToForce(this.lock, this.holder));
    this.close = act('Close its session …', () => askToClose(this.holder.session, this.holder.label));
    this.lift = act('Lift the lock-delay …', () => askToLift(this.lock));
    this.session = el('a', {}, 'See its session');
    this.buttons = el('div', { class: 'acts' }, this.session, this.force, this.close, this.lift);
    this.element = el('section', { class: 'panel why', hidden: true }, this.title, this.facts, this.verdict, this.buttons);
  }

  /** `page` is the page of the lock. */
  draw({ lock, sessions, mayForce, isServed, unservedSince }) {
    const holder = lock.holders[0];
    const session = sessions[0];
    [this.lock, this.holder] = [lock, holder];
    this.element.hidden = !holder && !lock.delay_ms && !lock.queue_length;
    const isStuck = lock.queue_length > 0;
    write(this.title, isStuck ? 'Why this lock is stuck' : holder ? 'Why this lock is held' : 'Why this lock is closed');
    const facts = [...(holder ? holderFacts(lock, holder, session, isServed) : []), ['Waiting', waitingText(lock)]];
    keyed(this.facts, facts, ([name]) => name, ([name]) => fact(name, ''), (div, [, value]) => write(div.lastChild, value));
    write(this.verdict, isServed ? verdict(lock, holder, session) : unserved(unservedSince));
    this.session.hidden = !holder;
    if (holder) setAttribute(this.session, 'href', sessionAddress(holder.session));
    this.force.hidden = !holder || !mayForce;
    this.close.hidden = !holder || !session?.may_close || lock.is_entry;
    this.lift.hidden = Boolean(holder) || !lock.delay_ms || !mayForce;
    for (const button of [this.force, this.close, this.lift]) setAttribute(button, 'disabled', !isServed);
    this.buttons.hidden = !holder && this.lift.hidden;
  }
}

function holderFacts(lock, holder, session, isServed) {
  const deadline = isServed ? `${clock(nodeNow() + holder.remaining_ms)}, in ${duration(holder.remaining_ms)}` : `stands still, ${duration(holder.remaining_ms)} left`;
  const more = lock.holder_count > 1 ? ` and ${count(lock.holder_count - 1)} more` : '';
  const facts = [
    ['Holder', nameOf(holder.label) + more],
    ['Since', `${moment(holder.since)}, for ${since(holder.since)}`],
    [holder.revoked ? 'Deadline' : 'Deadline unless renewed', deadline],
  ];
  if (session) facts.push(['Last renewal', `${duration(session.renewed_ms)} ago, TTL ${duration(session.ttl_ms)}`]);
  return facts;
}

function waitingText(lock) {
  const first = lock.waiters[0];
  if (!lock.queue_length) return 'nobody';
  return first ? `${count(lock.queue_length)}; ${nameOf(first.label)} for ${since(first.since)}` : count(lock.queue_length);
}

const unserved = (since) => `The cluster cannot commit anything${since ? ` since ${clock(since)}` : ''}: nobody can renew, release or acquire, and time stands still for leases. This is what the node knew last.`;

function verdict(lock, holder, session) {
  const next = lock.queue_length ? 'the first in the queue gets the lock' : 'the lock is free';
  if (!holder) {
    return lock.delay_ms
      ? `Its last holder was lost while it may still have been working. A lock-delay keeps the lock closed for another ${duration(lock.delay_ms)}, so that this work can end.`
      : 'Nobody holds it, and the first in the queue has not been granted it yet: it also waits for other locks, or for more permits than are free.';
  }
  if (holder.revoked) return `An operator asked for it back (“${visible(holder.revoked)}”). Its holder loses it in ${duration(holder.remaining_ms)} at the latest, or when it lets go.`;
  if (!session) return `The lease of its holder is over, and what it held is being freed: then ${next}.`;
  if (session.renewed_ms < session.ttl_ms * SILENT_SHARE) {
    return `Its client is alive: it renewed ${duration(session.renewed_ms)} ago, and keeps the lock until it lets go. See what it does, at the address of its session, before you take the lock from it.`;
  }
  return `Its client has not renewed for ${duration(session.renewed_ms)}. If it stays silent, its lease ends by itself in ${duration(holder.remaining_ms)}; then ${next}, after the lock-delay if it asked for one.`;
}

/** The page of one lock. */
export class LockPage {
  constructor(name) {
    this.name = name;
    this.everyMs = 1000;
    this.title = name;
    this.feed = { lock: name };
    this.opened = nodeNow();
    /** Whether the cluster can change anything, as the page around this one knows; and since when it cannot. */
    this.isServed = true;
    this.unservedSince = null;
    /** Cursors of the pages of the queue before this one. */
    this.cursors = [];
    /** The holders that were seen, by token; and the longest tenure of one that has gone. */
    this.seen = new Map();
    this.longest = null;
    this.state = el('span', { class: 'tag' }, '…');
    this.kind = el('span', { class: 'tag', hidden: true }, 'entry of another protocol');
    this.note = el('p', { class: 'note', hidden: true });
    this.why = new Why();
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
      'div', {}, pathOf(name, false), el('div', { class: 'head' }, el('h1', {}, visible(name)), this.state, this.kind), this.note, this.why.element,
      el('section', { class: 'panel block' }, el('h2', {}, 'Held by'), holders, this.holdersNote, this.facts),
      el('section', { class: 'panel block' }, el('h2', {}, 'Queue', this.queueCount), queue, this.queueNote, this.pagerTable),
      this.dataBlock,
    );
  }

  async refresh() {
    const cursor = this.cursors.at(-1);
    const { lock, sessions, may_force } = await call('lock', { name: this.name, ...(cursor ? { waiters_after: cursor.ticket } : {}) });
    [this.lock, this.sessions, this.mayForce] = [lock, sessions, may_force];
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
    this.why.draw(this);
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
      setAttribute(row.force, 'disabled', !this.isServed);
    });
    this.holdersTable.hidden = !lock.holders.length;
    const more = lock.holder_count - lock.holders.length;
    write(this.holdersNote, lock.holders.length ? (more > 0 ? `and ${count(more)} more` : '') : lock.delay_ms ? `Nobody. A lock-delay keeps it closed for another ${duration(lock.delay_ms)}.` : 'Nobody.');
    this.holdersNote.hidden = !this.holdersNote.textContent;
  }

  drawQueue(lock) {
    const make = (waiter) => {
      const row = el('tr', {}, ...WAITER_HEAD.map(([name]) => el('td', { class: name })));
      row.under = el('div', { class: 'under' });
      row.children[1].append(el('a', { href: sessionAddress(waiter.session), 'data-move': true }, nameOf(waiter.label)), row.under);
      row.remove_ = el('button', { class: 'small danger', type: 'button', on: { click: () => askToRemove(lock, waiter) } }, 'Remove …');
      row.children[5].append(row.remove_);
      return row;
    };
    let place = this.before();
    keyed(this.queue, lock.waiters, (waiter) => waiter.ticket, make, (row, waiter) => {
      place += 1;
      const texts = [count(place), null, waiter.mode, since(waiter.since), waiter.remaining_ms == null ? 'never' : duration(waiter.remaining_ms)];
      texts.forEach((text, at) => text != null && write(row.children[at], text));
      write(row.under, `for ${since(waiter.since)}`);
      // An entry of another protocol leaves the queue by its own client, or with its lease.
      row.remove_.hidden = !this.mayForce || lock.is_entry;
      setAttribute(row.remove_, 'disabled', !this.isServed);
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
