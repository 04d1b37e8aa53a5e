// The page around the views: who leads, what is wrong, where to go, and which keys do what.

import * as acts from './acts.js';
import { byId, bytes, clock, count, duration, el, keyed, setAttribute, setClass, visible, write } from './dom.js';
import * as feed from './feed.js';
import * as graphs from './graphs.js';
import { LockPage } from './lock.js';
import * as locks from './locks.js';
import { Lost, Refused, call, token } from './net.js';
import * as past from './past.js';
import { SessionPage, Sessions } from './sessions.js';

const STATUS_MS = 1000;
/** A node that takes longer to tell its state is lost. */
const STATUS_LIMIT_MS = 3000;
/** A node that refuses counts and notes each refusal: it is asked less often. */
const DENIED_MS = 10_000;
/** A member that has not answered for this time is shown as silent. */
const SILENT_MS = 2000;
/** Least time between two refreshes of a view because something changed. */
const SOON_MS = 250;
/** Somebody who types has paused for this time: then the list is filtered. */
const TYPED_MS = 200;

let status = null;
/** When the node answered last, and since when it does not. */
let answeredAt = Date.now();
let lostAt = null;
let refused = null;
/** Why the view is not shown, if rights are missing. */
let denied = null;
let view = null;
let timer = 0;
let askedWho = false;
/** Since when this node cannot serve, by its own clock, if the page knows. */
let unservedSince = null;
let typed = 0;

/* The view. */

function viewOf(hash) {
  const [, kind, ...rest] = hash.split('/');
  let text;
  try {
    text = decodeURIComponent(rest.join('/'));
  } catch {
    text = rest.join('/');
  }
  switch (kind) {
    case 'lock': return new LockPage(text);
    case 'search': return new locks.Search(text);
    case 'sessions': return new Sessions();
    case 'session': return new SessionPage(text);
    default: return new locks.Tree(kind === 'locks' ? text : '');
  }
}

function show() {
  const next = viewOf(location.hash);
  // Another text in the same search: what is shown stays until something else is found.
  if (view instanceof locks.Search && next instanceof locks.Search) {
    view.find(next.text);
    soon(0);
    return;
  }
  view = next;
  denied = null;
  view.again = () => soon(0);
  byId('view').replaceChildren(view.element);
  const of = view instanceof Sessions || view instanceof SessionPage ? 'sessions' : 'locks';
  for (const tab of document.querySelectorAll('.tabs a')) setAttribute(tab, 'aria-current', tab.dataset.view === of ? 'page' : null);
  if (!(view instanceof locks.Search)) byId('search-text').value = '';
  else if (document.activeElement !== byId('search-text')) byId('search-text').value = view.text;
  drawTrouble();
  window.scrollTo(0, 0);
  feed.follow(view.feed);
  soon(0);
}

async function refresh() {
  const shown = view;
  if (!document.hidden) {
    try {
      await shown.refresh();
      denied = null;
    } catch (error) {
      denied = error instanceof Refused && [401, 403].includes(error.status) ? error : null;
      if (error instanceof Refused) shown.fail(error.status === 401 ? '' : error.message);
      else if (!(error instanceof Lost)) throw error;
    }
  }
  if (shown !== view) return;
  drawView();
  soon(denied ? DENIED_MS : view.everyMs);
}

/** A node that cannot serve, or that is lost, changes nothing: the view says so, and offers no act. */
function drawView() {
  view.isServed = !lostAt && !refused && status?.node.serving !== false;
  view.unservedSince = unservedSince;
  view.draw();
}

function soon(ms) {
  clearTimeout(timer);
  timer = setTimeout(refresh, ms);
}

/* The cluster. */

async function turn() {
  if (!document.hidden) {
    try {
      const told = await call('status', {}, STATUS_LIMIT_MS);
      compare(told);
      [status, lostAt, refused, answeredAt] = [told, null, null, Date.now()];
    } catch (error) {
      if (error instanceof Refused) [refused, lostAt, answeredAt] = [error, null, Date.now()];
      else lostAt ??= answeredAt;
    }
    draw();
  }
  setTimeout(turn, refused ? DENIED_MS : STATUS_MS);
}

/** An election, or the end of one: the node has recorded when. */
function compare(told) {
  const [before, now] = [status?.node, told.node];
  if (!before || (before.leader === now.leader && before.term === now.term && before.serving === now.serving)) return;
  past.refresh();
}

/** What the node recorded of the cluster. */
function takePast(news) {
  for (const { kind, at } of news) {
    if (kind === 'trouble') unservedSince ??= at;
    if (kind === 'serves') unservedSince = null;
  }
  if (news.length) feed.tell(news);
  graphs.draw();
}

function draw() {
  drawTrouble();
  if (!status) return;
  const { node, members, by_leader: byLeader, you } = status;
  write(byId('cluster-name'), node.cluster);
  write(byId('identity'), you ?? (token.get() ? 'token' : 'anonymous'));
  write(byId('count-locks'), count(node.locks));
  write(byId('count-sessions'), count(node.sessions));
  write(byId('members-note'), byLeader ? reserve()?.note ?? '' : 'as this node knows them: it reaches no leader');
  keyed(byId('members').tBodies[0], members, (member) => member.id, () => el('tr', {}, ...Array.from({ length: 7 }, (_, at) => el('td', { class: [2, 3].includes(at) ? 'number' : at === 4 ? 'number wide' : at > 4 ? 'wide' : '' }))), (row, member) => drawMember(row, member, node, byLeader));
  const facts = [
    ['Term', count(node.term)],
    ['Entries applied', count(node.applied_index)],
    ['Fencing token', Number(node.last_token).toLocaleString('en')],
    ['Table', node.table_bytes_max ? `${bytes(node.table_bytes)} of ${bytes(node.table_bytes_max)}` : bytes(node.table_bytes)],
    ['Largest delay', duration(node.turn_delay_us / 1000)],
  ];
  if (node.certificate_seconds_left != null) facts.push(['Certificate', node.certificate_seconds_left < 0 ? 'expired' : duration(node.certificate_seconds_left * 1000)]);
  keyed(byId('facts'), facts, ([name]) => name, ([name]) => el('div', {}, el('dt', {}, name), el('dd')), (div, [, value]) => write(div.lastChild, value));
  write(byId('footer-node'), `Node ${node.id} of ${node.cluster} · ${node.version} · cluster version ${node.cluster_version}`);
}

function memberState(member, node, byLeader) {
  if (member.id === node.id && node.role === 'leader' && !node.serving) return ['bad', node.trouble.split(':')[0]];
  if (member.id === node.leader && (byLeader || node.serving)) return ['good', 'leads'];
  if (!byLeader) return member.id === node.id ? [node.serving ? 'good' : 'bad', node.trouble || node.role] : ['', 'not known'];
  if (member.silent_ms == null) return ['bad', 'does not answer'];
  if (member.silent_ms > SILENT_MS) return ['bad', `silent for ${duration(member.silent_ms)}`];
  if (member.trouble) return ['warn', member.trouble];
  if (member.disk_low) return ['warn', 'disk nearly full'];
  if (member.is_leaving) return ['warn', 'is being replaced'];
  return ['good', member.voter ? 'follows' : 'learner'];
}

function drawMember(row, member, node, byLeader) {
  const [id, state, lag, silent, disk, version, address] = row.children;
  if (!id.firstChild) {
    id.append(String(member.id));
    if (member.id === node.id) id.append(' ', el('span', { class: 'this' }, 'this'));
    row.state = el('span');
    row.mark = el('span', { class: 'state' }, el('span', { class: 'dot' }), row.state);
    state.append(row.mark);
  }
  const [how, text] = memberState(member, node, byLeader);
  setClass(row.mark, `state ${how && `is-${how}`}`);
  setClass(row.state, how === 'good' ? '' : how);
  write(row.state, visible(text));
  setAttribute(state, 'title', byLeader && !member.safe_to_stop ? `not to be stopped now: ${member.unsafe_reason}` : null);
  write(lag, member.lag == null ? '–' : count(member.lag));
  write(silent, member.id === node.leader ? '' : member.silent_ms == null ? '–' : duration(member.silent_ms));
  write(disk, member.disk_total ? bytes(member.disk_free) : '–');
  write(version, member.version || '–');
  write(address, member.address);
}

/**
 * How many voters the cluster can still lose, as its leader sees them: `spare`, those that are `missing`, and both in words. `null`: not
 * known. A voter that answers but does not catch up cannot take the place of one that is lost.
 */
function reserve() {
  if (!status?.by_leader || !status.node.serving) return null;
  const voters = status.members.filter(({ voter }) => voter);
  const isMissing = ({ id, silent_ms, trouble }) => id !== status.node.leader && (silent_ms == null || silent_ms > SILENT_MS || trouble);
  const missing = voters.filter(isMissing);
  const needed = Math.floor(voters.length / 2) + 1;
  const spare = voters.length - missing.length - needed;
  const good = voters.length - missing.length;
  const text = `${good} of ${voters.length} voters ${good === 1 ? 'is' : 'are'} well, ${needed} ${needed === 1 ? 'is' : 'are'} needed`;
  const note = voters.length === 1 ? 'one voter: without it the cluster stops' : missing.length ? text : `${spare} can be lost`;
  return { spare, missing, voters, text, note };
}

/** Amber: the next loss stops the cluster. One voter alone is what its operator has chosen. */
function thinned() {
  const left = reserve();
  if (!left || left.spare > 0 || left.voters.length === 1) return null;
  const who = left.missing.map(({ id }) => id).join(', ');
  const why = who ? `: node${left.missing.length === 1 ? '' : 's'} ${who} ${left.missing.length === 1 ? 'is' : 'are'} missing` : ': two voters have none to spare';
  return { pill: 'next loss stops it', state: 'next loss stops it', title: 'The next loss stops the cluster.', text: `${left.text}${why}.` };
}

/** What is wrong, worst first. */
function trouble() {
  if (lostAt) {
    const who = status ? `node ${status.node.id}` : 'the node';
    return { bad: true, pill: `${who} is lost`, state: `${who} lost`, title: `No answer from ${who} at ${location.host} for ${duration(Date.now() - lostAt)}.`, text: 'What is shown here is old. This page tries again every second; another node may still serve.', stale: true };
  }
  if (refused?.status === 401) return { pill: 'who are you?', title: 'This cluster wants to know who you are.', text: refused.message, action: ['Give a token …', askWho] };
  if (refused) return { pill: 'refused', title: 'The node refuses to tell its state.', text: refused.message };
  if (!status) return null;
  const { node } = status;
  if (!node.serving) {
    const title = node.leader && node.role !== 'leader' ? `Node ${node.id} does not hear its leader, node ${node.leader}.` : `Node ${node.id} has no leader that can commit.`;
    const since = unservedSince ? ` since ${clock(unservedSince)}` : '';
    return { bad: true, pill: 'no leader', title, text: `It says${since}: ${node.trouble}. Locks are shown as this node knew them last; nothing can be changed through it now.` };
  }
  const amber = thinned();
  if (denied && !status.you) return { title: 'You are anonymous here, and may not see this.', text: '', pill: amber?.pill ?? null, action: ['Give a token …', askWho] };
  if (amber) return amber;
  if (node.disk_trouble) return { title: 'Disk:', text: node.disk_trouble, pill: null };
  return null;
}

function drawTrouble() {
  const wrong = trouble();
  const [banner, pill, action] = [byId('banner'), byId('pill'), byId('banner-action')];
  banner.hidden = !wrong;
  document.body.classList.toggle('is-stale', Boolean(wrong?.stale));
  if (wrong) {
    setClass(banner, wrong.bad ? 'banner is-bad' : 'banner');
    write(byId('banner-title'), wrong.title);
    write(byId('banner-text'), visible(wrong.text));
    action.hidden = !wrong.action;
    if (wrong.action) {
      write(action, wrong.action[0]);
      action.onclick = wrong.action[1];
      if (!askedWho && refused) askWho();
    }
  }
  const { node } = status ?? {};
  const well = node && (node.role === 'leader' ? `node ${node.id} leads` : `node ${node.id} follows node ${node.leader}`);
  write(byId('pill-text'), wrong?.pill ?? well ?? 'connecting');
  setClass(pill, `pill ${wrong ? (wrong.bad ? 'is-bad' : 'is-warn') : node ? 'is-good' : ''}`);
  drawTitle(wrong, node);
}

/** The title of the tab: which cluster, and whether it is well, before what is looked at. */
function drawTitle(wrong, node) {
  const state = wrong?.state ?? wrong?.pill ?? (node ? 'healthy' : 'connecting');
  const cluster = node ? `${node.cluster}: ` : '';
  const at = view && view.title !== 'Locks' ? ` · ${visible(view.title)}` : '';
  const title = `${wrong?.bad || wrong?.pill ? '⚠ ' : ''}${cluster}${state}${at} – Lockkeeper`;
  if (document.title !== title) document.title = title;
}

/* Who you are. */

function askWho() {
  askedWho = true;
  if (byId('who').open) return;
  write(byId('who-text'), status?.you ? `You are ${status.you}.` : 'Give a token of the cluster’s; your operators have it from `lockkeeper token`.');
  byId('who-token').value = '';
  byId('who-forget').hidden = !token.get();
  byId('who').showModal();
}

function become(secret) {
  token.set(secret);
  byId('who').close();
  [status, refused] = [null, null];
  turnNow();
  show();
}

async function turnNow() {
  try {
    [status, refused, lostAt] = [await call('status'), null, null];
  } catch (error) {
    if (error instanceof Refused) refused = error;
  }
  draw();
  past.refresh();
}

/* Keys. */

const isText = (element) => element.matches('input, select, textarea');

function move(by) {
  const all = [...byId('view').querySelectorAll('[data-move]')];
  const at = all.indexOf(document.activeElement);
  const next = at < 0 ? all[by > 0 ? 0 : all.length - 1] : all[at + by];
  next?.focus();
  return Boolean(next);
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  const { target } = event;
  if (event.key === 'Escape') {
    if (target.id === 'search-text' && (target.value || view instanceof locks.Search)) {
      target.value = '';
      clearTimeout(typed);
      if (view instanceof locks.Search) location.hash = '#/locks';
      target.blur();
    } else if (isText(target)) target.blur();
    else if (!(view instanceof locks.Tree) || view.root) location.hash = view instanceof SessionPage ? '#/sessions' : '#/locks';
    return;
  }
  if (isText(target) && !(target.id === 'search-text' && event.key === 'ArrowDown')) return;
  if (event.key === '/') {
    byId('search-text').focus();
    byId('search-text').select();
  } else if (event.key === 'ArrowDown' || event.key === 'j') {
    if (!move(1)) return;
  } else if (event.key === 'ArrowUp' || event.key === 'k') {
    if (!move(-1)) return;
  } else return;
  event.preventDefault();
}

/** Filters the locks by what is typed. The texts in between are no places to come back to. */
function search() {
  clearTimeout(typed);
  const text = byId('search-text').value.trim();
  const address = text ? `#/search/${encodeURIComponent(text)}` : '#/locks';
  if (!text && !(view instanceof locks.Search)) return;
  if (view instanceof locks.Search && text) {
    history.replaceState(null, '', address);
    if (view.text !== text) show();
  } else location.hash = address;
}

/* The theme. */

const THEMES = { auto: ['◐', 'as the system says'], light: ['○', 'light'], dark: ['●', 'dark'] };
let theme = 'auto';

function setTheme(wanted) {
  theme = wanted in THEMES ? wanted : 'auto';
  setAttribute(document.documentElement, 'data-theme', theme === 'auto' ? null : theme);
  const [sign, text] = THEMES[theme];
  write(byId('theme'), sign);
  setAttribute(byId('theme'), 'title', `Theme: ${text}`);
  setAttribute(byId('theme'), 'aria-label', `Theme: ${text}`);
}

function start() {
  setTheme(localStorage.getItem('lockkeeper-theme') ?? 'auto');
  byId('theme').addEventListener('click', () => {
    const all = Object.keys(THEMES);
    setTheme(all[(all.indexOf(theme) + 1) % all.length]);
    localStorage.setItem('lockkeeper-theme', theme);
  });
  byId('identity').addEventListener('click', askWho);
  byId('who-cancel').addEventListener('click', () => byId('who').close());
  byId('who-forget').addEventListener('click', () => become(null));
  byId('who-form').addEventListener('submit', (event) => {
    event.preventDefault();
    become(byId('who-token').value.trim());
  });
  byId('search').addEventListener('submit', (event) => {
    event.preventDefault();
    search();
  });
  byId('search-text').addEventListener('input', () => {
    clearTimeout(typed);
    typed = setTimeout(search, TYPED_MS);
  });
  document.addEventListener('keydown', key);
  document.addEventListener('visibilitychange', () => document.hidden || soon(0));
  window.addEventListener('hashchange', show);
  let last = 0;
  feed.start(() => {
    const now = performance.now();
    if (now - last < SOON_MS) return;
    last = now;
    soon(SOON_MS);
  });
  acts.start(() => soon(0));
  graphs.start();
  past.begin(takePast);
  // A level that comes onto the screen is asked for.
  document.addEventListener('scroll', () => view instanceof locks.Tree && soon(SOON_MS), { passive: true });
  show();
  turn();
}

start();
