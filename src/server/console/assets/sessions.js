// The list of sessions, and the page of one.

import { bytes, count, duration, el, keyed, lockAddress, moment, sessionAddress, setAttribute, visible, write } from './dom.js';
import { askToClose } from './acts.js';
import { call, nodeNow } from './net.js';

const HEAD = [['', 'Session'], ['c-identity', 'Identity'], ['c-address', 'Address'], ['c-queue number', 'Holds'], ['c-queue number', 'Awaits'], ['c-time number', 'Lease left'], ['c-time wide number', 'Open for']];

function table(caption, head) {
  const body = el('tbody');
  const cells = head.map(([name, text]) => el('th', { class: name, scope: 'col' }, text));
  return [el('table', { class: 'grid list', 'aria-label': caption }, el('thead', {}, el('tr', {}, ...cells)), body), body];
}

/** The sessions, a page at a time, in the order of their ids. */
export class Sessions {
  constructor() {
    this.everyMs = 2000;
    this.title = 'Sessions';
    this.feed = { prefix: '' };
    this.cursors = [];
    [this.list, this.body] = table('Sessions', HEAD);
    this.note = el('p', { class: 'note' }, 'Loading …');
    this.back = el('button', { class: 'small', type: 'button', on: { click: () => this.page(-1) } }, '‹ previous 100');
    this.on = el('button', { class: 'small', type: 'button', on: { click: () => this.page(1) } }, 'next 100 ›');
    this.place = el('span', { class: 'soft' });
    this.pager = el('div', { class: 'pager', hidden: true }, this.back, this.on, this.place);
    this.element = el('div', { class: 'panel' }, this.list, this.note, this.pager);
  }

  async refresh() {
    const after = this.cursors.at(-1);
    this.data = await call('sessions', after ? { after } : {});
    this.fail('');
  }

  fail(text) {
    this.note.hidden = !text;
    write(this.note, text);
  }

  page(by) {
    if (by < 0) this.cursors.pop();
    else if (this.data?.more_after) this.cursors.push(this.data.more_after);
    this.again?.();
  }

  draw() {
    const { sessions, more_after } = this.data ?? { sessions: [] };
    const make = (session) => {
      const row = el('tr', {}, ...HEAD.map(([name]) => el('td', { class: name })));
      row.under = el('div', { class: 'under' });
      row.children[0].append(el('div', { class: 'name' }, el('a', { href: sessionAddress(session.id), title: session.id, 'data-move': true }, visible(session.label || 'unnamed'))), row.under);
      return row;
    };
    keyed(this.body, sessions, (session) => session.id, make, (row, session) => {
      const { owner, address, grants, waits, remaining_ms, opened } = session;
      const texts = [null, owner ?? '–', address || '–', grants ? count(grants) : '', waits ? count(waits) : '', duration(remaining_ms), duration(nodeNow() - opened)];
      texts.forEach((text, at) => text != null && write(row.children[at], text));
      write(row.under, address);
    });
    this.list.hidden = sessions.length === 0;
    if (this.data && sessions.length === 0) this.fail('No session is open, or none is yours to see.');
    this.pager.hidden = !more_after && !this.cursors.length;
    this.back.disabled = !this.cursors.length;
    this.on.disabled = !more_after;
    write(this.place, `page ${this.cursors.length + 1}`);
  }
}

/** One session and what it holds. */
export class SessionPage {
  constructor(id) {
    this.id = id;
    this.everyMs = 1000;
    this.title = `Session ${id.slice(0, 8)}`;
    this.feed = { prefix: '' };
    this.cursors = [];
    this.heading = el('h1', {}, '…');
    /** Whether the cluster can change anything, as the page around this one knows. */
    this.isServed = true;
    this.close = el('button', { type: 'button', class: 'danger', hidden: true, on: { click: () => askToClose(id, this.data.session.label, this.data.session) } }, 'Close …');
    this.note = el('p', { class: 'note' }, 'Loading …');
    this.facts = el('dl', { class: 'facts' });
    [this.list, this.body] = table('Grants', [['c-token number', 'Token'], ['', 'Locks'], ['c-time number', 'Held for']]);
    [this.waits, this.waitsBody] = table('Waits', [['', 'Locks'], ['c-time number', 'Waits for']]);
    this.back = el('button', { class: 'small', type: 'button', on: { click: () => this.page(-1) } }, '‹ previous');
    this.on = el('button', { class: 'small', type: 'button', on: { click: () => this.page(1) } }, 'next ›');
    this.pager = el('div', { class: 'pager', hidden: true }, this.back, this.on);
    this.nothing = el('p', { class: 'note' }, 'Nothing.');
    this.waitsBlock = el('section', { class: 'panel block' }, el('h2', {}, 'Waits for'), this.waits);
    this.blocks = el('div', { hidden: true }, el('section', { class: 'panel' }, el('h2', {}, 'Holds'), this.list, this.nothing, this.pager, this.facts), this.waitsBlock);
    this.element = el('div', {}, el('div', { class: 'path' }, el('a', { href: '#/sessions' }, 'sessions'), el('span', {}, '›'), el('span', {}, id)), el('div', { class: 'head' }, this.heading, this.close), this.note, this.blocks);
  }

  async refresh() {
    const after = this.cursors.at(-1);
    this.data = await call('session', { id: this.id, ...(after ? { after } : {}) });
    this.fail(this.data.session ? '' : 'This session is not open: it was closed, has expired, or never was.');
  }

  fail(text) {
    this.note.hidden = !text;
    write(this.note, text);
  }

  page(by) {
    if (by < 0) this.cursors.pop();
    else if (this.data?.more) this.cursors.push(this.data.grants.at(-1).token);
    this.again?.();
  }

  draw() {
    const { session, grants, waits, more, may_close } = this.data ?? {};
    this.blocks.hidden = !session;
    this.close.hidden = !session || !may_close;
    setAttribute(this.close, 'disabled', !this.isServed);
    if (!session) return;
    write(this.heading, visible(session.label || 'unnamed'));
    const now = nodeNow();
    const links = (names) => names.slice(0, 8).flatMap((name, at) => [at ? ', ' : '', el('a', { href: lockAddress(name), title: visible(name), 'data-move': true }, visible(name))]).concat(names.length > 8 ? ` and ${names.length - 8} more` : []);
    const makeGrant = (grant) => el('tr', {}, el('td', { class: 'c-token number' }, grant.token), el('td', {}, ...links(grant.names), grant.revoked ? el('span', { class: 'tag warn' }, `revoked: ${visible(grant.revoked)}`) : null), el('td', { class: 'c-time number' }));
    keyed(this.body, grants, (grant) => `${grant.token} ${grant.revoked}`, makeGrant, (row, grant) => write(row.lastChild, duration(now - grant.since)));
    const makeWait = (wait) => el('tr', {}, el('td', {}, ...links(wait.names)), el('td', { class: 'c-time number' }));
    keyed(this.waitsBody, waits, (wait) => wait.ticket, makeWait, (row, wait) => write(row.lastChild, duration(now - wait.since)));
    this.list.hidden = !grants.length;
    this.nothing.hidden = grants.length > 0;
    this.waitsBlock.hidden = !waits.length;
    this.pager.hidden = !more && !this.cursors.length;
    setAttribute(this.back, 'disabled', !this.cursors.length);
    setAttribute(this.on, 'disabled', !more);
    const facts = [
      ['Identity', session.owner ?? 'anonymous'],
      ['Opened', moment(session.opened)],
      ['From', session.address || 'unknown'],
      ['Lease left', `${duration(session.remaining_ms)} of ${duration(session.ttl_ms)}`],
      ['In the table', bytes(session.bytes)],
    ];
    keyed(this.facts, facts, ([name]) => name, ([name]) => el('div', {}, el('dt', {}, name), el('dd')), (div, [, value]) => write(div.lastChild, value));
  }
}
