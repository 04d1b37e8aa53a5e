// Texts: header, verdicts, summary, tooltips. Names are set as text, never as markup.

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'class') element.className = value;
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** All times and durations use one unit, to be comparable. */
const seconds = (ns, digits = 6) => `${(ns / 1e9).toFixed(digits)} s`;
const many = (count, one, more = `${one}s`) => `${count.toLocaleString('en')} ${count === 1 ? one : more}`;

function outcomeOfAll() {
  const count = (verdict) => report.findings.filter((finding) => finding.verdict === verdict).length;
  const [violated, undecided, vacuous, all] = [count('violated'), count('undecided'), count('vacuous'), report.findings.length];
  if (!all) return ['none', 'Not checked'];
  if (violated) return ['bad', `${violated} of ${many(all, 'property', 'properties')} violated`];
  if (undecided) return ['doubt', `${undecided} of ${many(all, 'property', 'properties')} undecided`];
  if (vacuous) return ['doubt', `${many(all - vacuous, 'property holds', 'properties hold')}, ${vacuous} not tested`];
  return ['good', `All ${many(all, 'property holds', 'properties hold')}`];
}

function writeHead() {
  const { summary } = report;
  const [kind, words] = outcomeOfAll();
  const facts = [
    ['Seed', report.seed],
    ['Duration', `${seconds(summary.duration_ms * 1e6, 3)}${summary.ended ? '' : ', incomplete'}`],
    ['Events', summary.events.toLocaleString('en')],
    ['Grants', summary.grants.toLocaleString('en')],
    ['Faults', summary.faults_injected],
    ['Killed', `${many(summary.nodes_killed, 'node')}, ${many(summary.clients_killed, 'client')}`],
    ...report.versions,
  ].filter(([, value]) => value !== undefined && value !== null);
  const list = make('dl', {}, ...facts.flatMap(([name, value]) => [make('div', {}, make('dt', { textContent: name }), make('dd', { textContent: String(value) }))]));
  document.getElementById('head').append(make('div', { class: 'title' }, make('h1', { textContent: 'Lockkeeper: a run' }), make('span', { class: `badge ${kind}`, textContent: words })), list);
  if (report.command) {
    const copy = make('button', { textContent: 'Copy' });
    copy.addEventListener('click', () => navigator.clipboard?.writeText(report.command).then(() => (copy.textContent = 'Copied')));
    document.getElementById('head').append(make('p', { class: 'command' }, make('span', { textContent: 'Repeat with ' }), make('code', { textContent: report.command }), copy));
  }
  document.title = `${words} · Lockkeeper run${report.seed === undefined ? '' : ` ${report.seed}`}`;
}

function writeVerdicts() {
  const place = document.getElementById('verdicts');
  if (!report.findings.length) {
    place.append(make('p', { class: 'note', textContent: 'This report has no verdicts, since the history was not checked.' }));
    return;
  }
  const rank = ['violated', 'undecided', 'vacuous', 'holds'];
  const sorted = [...report.findings].sort((a, b) => rank.indexOf(a.verdict) - rank.indexOf(b.verdict));
  for (const finding of sorted.filter((one) => one.verdict === 'violated')) place.append(violated(finding));
  for (const finding of sorted.filter((one) => one.verdict === 'undecided')) {
    place.append(make('div', { class: 'verdict doubt' }, make('h3', { textContent: `? ${finding.property}: undecided` }), make('p', { textContent: finding.why })));
  }
  const chips = sorted.filter((one) => one.verdict === 'vacuous' || one.verdict === 'holds').map((finding) => {
    const evidence = finding.evidence.map(([what, count]) => `${count.toLocaleString('en')} ${what}`).join(', ');
    const [sign, kind, words] = finding.verdict === 'holds' ? ['✓', 'good', evidence || 'holds'] : ['–', 'none', 'not tested: no evidence'];
    return make('li', { class: kind }, make('b', { textContent: `${sign} ${finding.property}` }), make('span', { textContent: words }));
  });
  if (chips.length) place.append(make('ul', { class: 'chips' }, ...chips));
}

function violated(finding) {
  const items = finding.shown.map((one) => {
    const { id } = violations.find((known) => known.says === one.says && known.property === finding.property && String(known.lines) === String(one.lines));
    const link = make('a', { href: `#${id}`, textContent: one.says });
    // A second click on the same link does not change the hash, so there is no hashchange event.
    link.addEventListener('click', () => location.hash === `#${id}` && followHash());
    return make('li', {}, link, make('small', { textContent: ` line${one.lines.length === 1 ? '' : 's'} ${one.lines.join(', ')}` }));
  });
  const more = finding.count - finding.shown.length;
  const times = `${finding.count.toLocaleString('en')} ${finding.count === 1 ? 'time' : 'times'}`;
  return make('div', { class: 'verdict bad' },
    make('h3', { textContent: `✕ ${finding.property}: violated ${times}` }),
    make('ul', {}, ...items, more > 0 ? make('li', { textContent: `and ${more.toLocaleString('en')} more` }) : null));
}

function table(caption, head, body) {
  const row = (tag) => (cells) => make('tr', {}, ...cells.map((cell) => make(tag, { textContent: typeof cell === 'number' ? cell.toLocaleString('en') : cell, class: typeof cell === 'number' ? 'number' : '' })));
  return make('table', {}, make('caption', { textContent: caption }), make('thead', {}, row('th')(head)), make('tbody', {}, ...body.map(row('td'))));
}

function writeSummary() {
  const { summary } = report;
  const reasons = (failed) => Object.entries(failed).map(([reason, count]) => `${reason} ${count.toLocaleString('en')}`).join(', ');
  const counts = [
    ['clients', summary.clients], ['sessions', summary.sessions], ['locks', summary.locks], ['grants', summary.grants], ['hand-overs', summary.hand_overs],
    ['expiries', summary.expiries], ['forced releases', summary.forced_releases], ['refused writes', summary.refused_writes],
    ...Object.entries(summary.losses).map(([why, count]) => [`lost: ${why}`, count]),
    ['clients killed', summary.clients_killed], ['elections', summary.elections], ['nodes killed', summary.nodes_killed],
    ['nodes started', summary.nodes_started], ['nodes stopped', summary.nodes_stopped], ['nodes joined', summary.nodes_joined],
    ['nodes removed', summary.nodes_removed], ['leaderships transferred', summary.transfers], ['snapshots installed', summary.snapshots_installed],
  ];
  const place = document.getElementById('summary');
  place.append(make('h2', { textContent: 'Summary' }));
  const tables = make('div', { class: 'tables' },
    table('Operations', ['', 'begun', 'ok', 'unknown', 'failed'], summary.operations.map((one) => [one.f, one.invoked, one.ok, one.unknown, reasons(one.failed) || '–'])),
    table('Counts', ['', ''], counts),
    summary.faults.length ? table('Faults', ['', 'times', 'lasted'], summary.faults.map((one) => [one.name, one.times, seconds(one.lasted_ms * 1e6, 3)])) : null);
  place.append(tables);
}

function writeLegend() {
  const entries = [
    ['tenure', 'held: token and client; the left edge is the grant'], ['shared', 'shared or permit'], ['tail', 'release sent, not answered yet'],
    ['wait', 'waits'], ['unknown', 'unknown outcome'], ['lead', 'leader; ■ installed a snapshot'], ['down', 'node down'],
    ['fault', 'a fault, shaded over all lanes; a bar above each target node'], ['refused', '✕ refused write'], ['lost', '◆ loss noticed'], ['forced', '▼ forced release'],
  ];
  document.getElementById('legend').append(...entries.map(([kind, words]) => make('span', {}, make('i', { class: `swatch ${kind}` }), words)));
}

const WAYS = [['wheel', 'zoom at the pointer'], ['Shift + wheel', 'scroll in time'], ['wheel over the names', 'scroll up and down'], ['drag', 'move'], ['click', 'pin the item under the pointer; on a name: show only its lanes'],
  ['← → ↑ ↓', 'move'], ['+ −', 'zoom'], ['0', 'the whole run'], ['Home, End', 'begin and end of the run'], ['N, P', 'next and previous event of the selection'], ['Esc', 'clear the selection']];
function toggleKeys() {
  const keys = document.getElementById('keys');
  if (!keys.childElementCount) keys.append(make('dl', {}, ...WAYS.flatMap(([key, words]) => [make('dt', { textContent: key }), make('dd', { textContent: words })])));
  keys.hidden = !keys.hidden;
  document.getElementById('help').setAttribute('aria-expanded', String(!keys.hidden));
}

const MARK_NAMES = { refused: 'write refused: an old token', lost: 'loss noticed', died: 'client killed', force_release: 'forced release', revoked: 'revoked by force', unknown: 'unknown outcome', snapshot: 'snapshot installed', renewed: 'renewed', table: 'table hash', failed: 'failed', write: 'write accepted' };
function titleOf(item, lane) {
  const lasted = seconds(item.to - item.from);
  switch (item.kind) {
    case 'tenure': return `${lane.name} held by ${item.client} for ${lasted}: token ${item.token}, ${item.mode}; end: ${item.end}`;
    case 'wait': return `${item.client} requested ${lane.name}: ${item.how} after ${lasted}`;
    case 'operation': return `${lane.name}: ${item.f}, ${item.how} after ${lasted}`;
    case 'session': return `session ${item.session} of ${lane.name}: ${lasted}; end: ${item.end}`;
    case 'led': return `${lane.name} led term ${item.term} for ${lasted}`;
    case 'down': return `${lane.name} was down for ${lasted}`;
    case 'absent': return `${lane.name} was no member for ${lasted}`;
    case 'faulty': case 'fault': return `fault: ${item.name}${item.hit && ` (${item.hit})`}, for ${lasted}`;
    default: return `${lane.name}: ${MARK_NAMES[item.what] ?? item.what.replace('_', ' ')}`;
  }
}

/** One event in one line of text: process, operation and values. */
function textOf(event, line) {
  const flat = (value) => (value !== null && typeof value === 'object' ? JSON.stringify(value).replaceAll('"', '') : String(value));
  const value = Object.entries(event.value ?? {}).map(([name, one]) => `${name} ${flat(one)}`).join(', ');
  const op = event.op === undefined ? '' : ` #${event.op}`;
  const names = locksOf(event, line).join(' + ');
  return [`${event.process}${op}`, `${event.type === 'info' ? '' : `${event.type} `}${event.f}${names && ` ${names}`}`, value];
}

function entryOf(line) {
  const event = eventOf(line);
  if (!event) return make('li', { textContent: `line ${line}: not in this history` });
  const [who, what, value] = textOf(event, line);
  return make('li', { 'data-line': line }, make('a', { href: `#line-${line}`, class: 'line', textContent: `line ${line}` }), make('time', { textContent: seconds(event.time_ns - firstNs) }),
    make('b', { textContent: who }), make('span', { class: event.type, textContent: what }), make('span', { class: 'value', textContent: value }));
}

const unique = (lines) => [...new Set(lines)].sort((a, b) => a - b);

function showTip(event) {
  const found = hit(event.offsetX, event.offsetY);
  canvas.classList.toggle('over', Boolean(found));
  tip.hidden = !found;
  if (!found) return;
  tip.replaceChildren(make('strong', { textContent: titleOf(found.item, found.lane) }), make('ul', {}, ...unique(found.item.lines).map(entryOf)));
  const [wide, high] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${Math.max(Math.min(event.offsetX + 14, view.width - wide - 4), 4)}px`;
  tip.style.top = `${event.offsetY + 18 + high > view.height ? Math.max(event.offsetY - high - 12, 0) : event.offsetY + 18}px`;
}

function pin({ item, lane }) {
  choose(titleOf(item, lane), unique(item.lines), false, false);
}

function showPinned() {
  const place = document.getElementById('pinned');
  const focus = document.getElementById('focus');
  focus.hidden = !chosen.only;
  focus.replaceChildren();
  if (chosen.only) {
    const widen = make('button', { textContent: 'Show all lanes' });
    widen.addEventListener('click', () => {
      chosen.only = false;
      showPinned();
      arrange();
      showChosen();
    });
    focus.append(make('span', { textContent: 'Only the locks and clients of this violation are shown. ' }), widen);
  }
  place.replaceChildren();
  if (!chosen.lines.size) {
    place.append(make('p', { class: 'note', textContent: 'Point at a bar or a mark to see its lines of the history; click to pin it here. Press ? for keys.' }));
    return;
  }
  const list = make('ol', {}, ...[...chosen.lines].map(entryOf));
  list.addEventListener('click', (event) => {
    const link = event.target.closest('a.line');
    if (!link) return;
    event.preventDefault();
    center(Number(link.parentElement.dataset.line));
  });
  const close = make('button', { textContent: 'Close (Esc)' });
  close.addEventListener('click', unchoose);
  place.className = chosen.bad ? 'bad' : '';
  place.append(make('div', { class: 'bar' }, make('h3', { textContent: chosen.title || 'Selection' }), close), list);
}

// Sections with many lanes are folded, and so are those of probes. Search results are always shown.
faultSection.open = nodeSection.open = true;
for (const section of [clientSection, lockSections[0]]) section.open = section.lanes.length <= 40;
readLook();
writeHead();
writeVerdicts();
writeLegend();
writeSummary();
listen();
showPinned();
arrange();
followHash();
