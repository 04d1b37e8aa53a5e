// What happens to locks and to the cluster: the changes of the last ten minutes that the node kept, and then each as it comes.

import { byId, clock, count, el, keyed, lockAddress, sessionAddress, visible, write } from './dom.js';
import { Lost, Refused, call, feed, nodeNow } from './net.js';

const KEPT = 800;
const SHOWN = 150;
const AGAIN_MS = [500, 1000, 2000, 5000];
const WORDS = {
  granted: 'granted', released: 'released', expired: 'expired', forced: 'taken back', revoked: 'revoked', queued: 'waits', left: 'gave up',
  data: 'data', delayed: 'lock-delay', opened: 'open again', resized: 'resized', gap: 'gap', many: 'and more', leader: 'leader',
  trouble: 'no service', serves: 'serves again',
};
/** What happened to the cluster, not to a lock: it is shown with every lock. */
const CLUSTER = new Set(['leader', 'trouble', 'serves']);
const LOSSES = new Set(['expired', 'forced', 'revoked', 'gap', ...CLUSTER]);

/** The newest first. */
let events = [];
let next = 1;
let kinds = 'all';
let paused = false;
/** The lock whose changes are shown; `null`: of all. */
let lock = null;
let stop = new AbortController();
let listener = () => {};

/** The changes of a lock that were seen. */
export const eventsOf = (lock) => events.filter((event) => event.name === lock);

/** Puts an event into its place by time; of the same time, the later one first. */
function add(event) {
  const at = events.findIndex((other) => other.at <= event.at);
  events.splice(at < 0 ? events.length : at, 0, { id: next++, ...event });
  if (events.length > KEPT) events.length = KEPT;
}

/** What happened to the cluster, the oldest first. */
export function tell(news) {
  for (const { kind, at, leader, term, why } of news) {
    add({ kind, at, text: kind === 'leader' ? `node ${leader} leads, term ${term}` : (why ?? '') });
  }
  draw();
}

/** A row for an event. `short`: of a lock that is named above. */
function eventRow(event, short) {
  const { kind, name, label, token, session, reason, by, mode, text } = event;
  const who = label != null || session ? el('a', { href: sessionAddress(session) }, visible(label || `session ${session.slice(0, 8)}`)) : null;
  const first = el('div', { class: 'event' }, el('b', {}, WORDS[kind] ?? kind), text != null ? visible(text) : short ? who : el('a', { href: lockAddress(name), title: visible(name) }, visible(name)));
  const rest = [];
  const join = (part) => part && rest.push(rest.length ? ' · ' : '', part);
  if (!short) join(who);
  join(token && `token ${token}`);
  join(kind === 'resized' && mode);
  join(by && `by ${visible(by)}`);
  if (rest.length) first.append(el('span', { class: 'more' }, ...rest));
  if (reason) first.append(el('span', { class: 'more why' }, `“${visible(reason)}”`));
  return el('li', { class: `k-${kind}` }, el('time', {}, clock(event.at)), first);
}

function draw() {
  if (paused) return;
  const isShown = (event) => (lock == null || event.name === lock || event.name == null) && (kinds === 'all' || LOSSES.has(event.kind));
  const shown = events.filter(isShown).slice(0, SHOWN);
  const short = lock != null;
  keyed(byId('feed'), shown, (event) => `${event.id} ${short}`, (event) => eventRow(event, short), () => {});
  const quiet = byId('feed-quiet');
  quiet.hidden = shown.length > 0 || !byId('feed-note').hidden;
}

function note(text) {
  const note = byId('feed-note');
  note.hidden = !text;
  write(note, text);
  if (text) byId('feed-quiet').hidden = true;
}

function take({ line, now, changes, counts }) {
  if (line === 'gap') {
    add({ kind: 'gap', text: 'changes are missing here: there were too many', at: now });
    return;
  }
  changes.forEach((change) => add({ at: now, ...change, granted: change.kind === 'granted' ? 1 : 0 }));
  if (counts.left_out) {
    const shown = changes.filter((change) => change.kind === 'granted').length;
    const names = new Set(changes.map((change) => change.name));
    const text = `${count(counts.left_out)} changes that are not shown`;
    // Of a feed of one lock: they are its own.
    add({ kind: 'many', text, at: now, name: names.size === 1 ? [...names][0] : null, granted: counts.granted - shown });
  }
}

/** Shows the past that the node kept. Returns the entry after which the feed goes on. */
async function refill(what, signal) {
  const { changes, left_out, index } = await call('changes', what);
  if (signal.aborted) return null;
  events = events.filter((event) => CLUSTER.has(event.kind));
  const now = nodeNow();
  changes.reverse().forEach(({ age_ms, ...change }) => add({ at: now - age_ms, ...change, granted: change.kind === 'granted' ? 1 : 0 }));
  write(byId('feed-quiet'), left_out ? 'No change of the last ten minutes is kept here.' : 'Nothing has changed in the last ten minutes.');
  write(byId('feed-past'), left_out ? `Of the last ten minutes, ${count(left_out)} further changes, of any lock, are not kept.` : '');
  byId('feed-past').hidden = !left_out;
  draw();
  return index || null;
}

/** Follows the changes under a prefix, or of one lock, until it is called again. */
export async function follow(what) {
  stop.abort();
  stop = new AbortController();
  const { signal } = stop;
  lock = what.lock ?? null;
  write(byId('feed-title'), lock == null ? 'What happens' : 'History');
  write(byId('feed-of'), what.prefix ? visible(what.prefix) : '');
  draw();
  // Where it goes on after a break.
  let after = null;
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      if (after == null) after = await refill(what, signal);
      if (signal.aborted) return;
      for await (const told of feed(after ? { ...what, after } : what, signal)) {
        after = told.line === 'gap' ? null : (told.index ?? after);
        if (told.line === 'end') throw new Refused(0, told.reason, told.message);
        tries = 0;
        note('');
        if (told.line === 'changes' && !told.changes.length) continue;
        take(told);
        draw();
        listener(told.changes ?? []);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && (error.status === 403 || error.status === 401)) return void note(error.message);
      note(error instanceof Lost || !(error instanceof Refused) ? 'Lost the feed; trying again.' : `The feed ended: ${error.message}. Trying again.`);
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)]));
  }
}

/** `changed` is called with the changes, as they come. */
export function start(changed) {
  listener = changed;
  byId('feed-kinds').addEventListener('change', (event) => {
    kinds = event.target.value;
    draw();
  });
  byId('feed-pause').addEventListener('click', ({ target }) => {
    paused = !paused;
    target.setAttribute('aria-pressed', String(paused));
    write(target, paused ? 'Go on' : 'Pause');
    draw();
  });
}
