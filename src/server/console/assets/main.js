// The page around the views: who leads, what is wrong, where to go, and which keys do what.

import { byId, bytes, count, duration, el, keyed, setAttribute, setClass, visible, write } from './dom.js';
import * as feed from './feed.js';
import * as graphs from './graphs.js';
import * as locks from './locks.js';
import { Lost, Refused, call, nodeNow, token } from './net.js';
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
    case 'lock': return new locks.LockPage(text);
    case 'search': return new locks.Search(text);
    case 'sessions': return new Sessions();
    case 'session': return new SessionPage(text);
    default: return new locks.Tree(kind === 'locks' ? text : '');
  }
}

function show() {
  view = viewOf(location.hash);
  denied = null;
  view.again = () => soon(0);
  byId('view').replaceChildren(view.element);
  document.title = view.title === 'Locks' ? 'Lockkeeper' : `${visible(view.title)} – Lockkeeper`;
  const of = view instanceof Sessions || view instanceof SessionPage ? 'sessions' : 'locks';
  for (const tab of document.querySelectorAll('.tabs a')) setAttribute(tab, 'aria-current', tab.dataset.view === of ? 'page' : null);
  if (!(view instanceof locks.Search)) byId('search-text').value = '';
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
  view.draw();
  soon(denied ? DENIED_MS : view.everyMs);
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

/** Elections, as this node sees them. */
function compare(told) {
  if (!status || (status.node.leader === told.node.leader && status.node.term === told.node.term)) return;
  const { leader, term } = told.node;
  feed.tell('leader', leader ? `node ${leader} leads, term ${term}` : `none is known, term ${term}`, nodeNow());
}

function draw() {
  drawTrouble();
  if (!status) return;
  const { node, members, by_leader: byLeader, you } = status;
  write(byId('cluster-name'), node.cluster);
  write(byId('identity'), you ?? (token.get() ? 'token' : 'anonymous'));
  write(byId('count-locks'), count(node.locks));
  write(byId('count-sessions'), count(node.sessions));
  write(byId('members-note'), byLeader ? '' : 'as this node knows them: it reaches no leader');
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

/** What is wrong, worst first. */
function trouble() {
  if (lostAt) {
    const who = status ? `node ${status.node.id}` : 'the node';
    return { bad: true, pill: `${who} is lost`, title: `No answer from ${who} at ${location.host} for ${duration(Date.now() - lostAt)}.`, text: 'What is shown here is old. This page tries again every second; another node may still serve.', stale: true };
  }
  if (refused?.status === 401) return { pill: 'who are you?', title: 'This cluster wants to know who you are.', text: refused.message, action: ['Give a token …', askWho] };
  if (refused) return { pill: 'refused', title: 'The node refuses to tell its state.', text: refused.message };
  if (!status) return null;
  const { node } = status;
  if (!node.serving) {
    const title = node.leader && node.role !== 'leader' ? `Node ${node.id} does not hear its leader, node ${node.leader}.` : `Node ${node.id} has no leader that can commit.`;
    return { bad: true, pill: 'no leader', title, text: `It says: ${node.trouble}. Locks are shown as this node knew them last; nothing can be changed through it now.` };
  }
  if (denied && !status.you) return { title: 'You are anonymous here, and may not see this.', text: '', pill: null, action: ['Give a token …', askWho] };
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
    const text = byId('search-text').value.trim();
    location.hash = text ? `#/search/${encodeURIComponent(text)}` : '#/locks';
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
  locks.start(() => soon(0));
  graphs.start();
  show();
  turn();
}

start();
