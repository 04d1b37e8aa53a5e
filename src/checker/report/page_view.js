// The visible section and the selection.

const stage = document.getElementById('stage');
const tip = document.getElementById('tip');
const overview = document.getElementById('overview');
const filterBox = document.getElementById('filter');
const NARROWEST_NS = 1000;

/** The selection: lines of the history, from a violation or a pinned bar. */
let chosen = { lines: new Set(), bad: false, title: '', at: 0, only: false };
let scroll = 0;
/** The text of the filter, in lower case. */
let wanted = '';
let rows = [];
let tall = 0;
const view = {
  from: firstNs - wholeNs * 0.01,
  span: wholeNs * 1.02,
  left: 160,
  right: 900,
  width: 900,
  height: 400,
  x(time) {
    return this.left + ((time - this.from) / this.span) * (this.right - this.left);
  },
  time(x) {
    return this.from + ((x - this.left) / (this.right - this.left)) * this.span;
  },
};

/** Lays out the lanes from top to bottom. */
function arrange() {
  wanted = filterBox.value.trim().toLowerCase();
  rows = [];
  let y = 0;
  for (const section of sections) {
    const open = chosen.only || wanted ? true : section.open;
    const lanes = section.lanes.filter((lane) => isWanted(section, lane));
    if (!lanes.length) continue;
    rows.push({ y, height: HEADING, section, count: lanes.length, open });
    y += HEADING;
    if (!open) continue;
    for (const lane of lanes) {
      lane.height ??= laneHeight(lane);
      rows.push({ y, height: lane.height, section, lane });
      y += lane.height;
    }
  }
  tall = y;
  resize();
}

function isWanted(section, lane) {
  if (section === nodeSection) return true;
  if (chosen.only) return chosen.lanes.has(lane);
  if (section === faultSection) return true;
  if (!wanted) return true;
  if (lane.name.toLowerCase().includes(wanted)) return true;
  // A client's name also matches the locks that it used, and a lock's name the clients that used it.
  return (lane.friends ??= friendsOf(section, lane)).some((name) => name.includes(wanted));
}

const friendsOf = (section, lane) => {
  if (lockSections.includes(section)) return [...new Set(lane.layers.slice(0, 2).flatMap((layer) => layer.items.map((item) => item.client.toLowerCase())))];
  return allLocks.filter((lock) => lock.layers.slice(0, 2).some((layer) => layer.items.some((item) => item.client === lane.name))).map((lock) => lock.name.toLowerCase());
};

function resize() {
  const width = stage.clientWidth;
  const height = Math.min(Math.max(tall + AXIS, 160), Math.max(innerHeight * 0.72, 280));
  const scale = devicePixelRatio || 1;
  for (const [surface, high] of [[canvas, height], [overview, 44]]) {
    surface.width = Math.round(width * scale);
    surface.height = Math.round(high * scale);
    surface.style.height = `${high}px`;
    surface.getContext('2d').setTransform(scale, 0, 0, scale, 0, 0);
  }
  Object.assign(view, { width, height, left: Math.min(170, width * 0.25), right: width - 10 });
  move(view.from, view.span);
}

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    paint();
    paintOverview();
  });
}

function move(from, span) {
  view.span = Math.min(Math.max(span, NARROWEST_NS), wholeNs * 1.04);
  const slack = Math.max(view.span * 0.5, wholeNs * 0.02);
  view.from = Math.min(Math.max(from, firstNs - slack), firstNs + wholeNs + slack - view.span);
  if (view.span >= wholeNs) view.from = firstNs + wholeNs / 2 - view.span / 2;
  scroll = Math.min(Math.max(scroll, 0), Math.max(tall - (view.height - AXIS), 0));
  redraw();
}

const zoom = (factor, x = (view.left + view.right) / 2) => {
  const at = view.time(x);
  const span = Math.min(Math.max(view.span * factor, NARROWEST_NS), wholeNs * 1.04);
  move(at - ((at - view.from) / view.span) * span, span);
};

function paint() {
  pen.font = FONT;
  pen.textBaseline = 'middle';
  box(0, view.width, 0, view.height, look.ground);
  paintAxis(view);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, view.width, view.height - AXIS);
  pen.clip();
  paintFaultShades();
  for (const row of rowsInSight()) paintRow(row, row.y - scroll + AXIS);
  paintChosen();
  pen.restore();
  paintChosenNumbers();
  paintRail();
}

const rowsInSight = () => rows.filter((row) => row.y + row.height > scroll && row.y < scroll + view.height - AXIS);

function paintFaultShades() {
  for (const lane of faultSection.lanes) {
    for (const layer of lane.layers) {
      eachInSight(layer, view, (item, left, right) => {
        const from = Math.max(left, view.left);
        if (right > from) box(from, Math.min(right, view.right), AXIS, view.height, look.fault);
      });
    }
  }
}

function paintRow(row, top) {
  if (!row.lane) {
    box(0, view.width, top, row.height, look.band);
    pen.fillStyle = look.text;
    pen.font = `600 ${FONT}`;
    pen.fillText(`${row.open ? '▾' : '▸'} ${row.section.title} (${row.count})`, 8, top + row.height / 2);
    pen.font = FONT;
    if (row.section.says) {
      pen.fillStyle = look.soft;
      pen.fillText(row.section.says, Math.max(view.left, 200), top + row.height / 2);
    }
    return;
  }
  pen.save();
  pen.beginPath();
  pen.rect(view.left, top, view.right - view.left, row.height);
  pen.clip();
  paintLane(row.lane, top, view);
  pen.restore();
  box(0, view.width, top + row.height - 1, 1, look.rule);
  box(0, view.left - 1, top, row.height - 1, look.panel);
  pen.save();
  pen.beginPath();
  pen.rect(0, top, view.left - 4, row.height);
  pen.clip();
  label(row.lane.name, 0, view.left - 4, top, row.height, look.text, { left: 6, right: view.left - 4 });
  pen.restore();
}

function paintChosen() {
  pen.strokeStyle = chosen.bad ? look.bad : look.pick;
  pen.lineWidth = 1;
  pen.setLineDash([4, 3]);
  for (const line of chosen.lines) {
    const at = timeOfLine(line);
    if (at === null || view.x(at) < view.left || view.x(at) > view.right) continue;
    pen.beginPath();
    pen.moveTo(view.x(at), AXIS);
    pen.lineTo(view.x(at), view.height);
    pen.stroke();
  }
  pen.setLineDash([]);
}

/** The numbers of the selected lines on the axis, where they fit. */
function paintChosenNumbers() {
  let taken = -Infinity;
  for (const line of chosen.lines) {
    const at = timeOfLine(line);
    if (at === null) continue;
    const x = view.x(at);
    if (x < view.left || x > view.right) continue;
    const color = chosen.bad ? look.bad : look.pick;
    shape(color, [x - 4, AXIS - 5], [x + 4, AXIS - 5], [x, AXIS + 1]);
    const wide = String(line).length * 6.2 + 8;
    if (x - wide / 2 < taken) continue;
    taken = x + wide / 2 + 2;
    box(x - wide / 2, x + wide / 2, 2, AXIS - 7, color);
    pen.fillStyle = look.ground;
    pen.textAlign = 'center';
    pen.fillText(String(line), x, (AXIS - 7) / 2 + 2.5);
    pen.textAlign = 'left';
  }
}

function paintRail() {
  const room = view.height - AXIS;
  const thumb = document.getElementById('thumb');
  document.getElementById('rail').hidden = tall <= room;
  thumb.style.height = `${Math.max((room / tall) * room, 24)}px`;
  thumb.style.top = `${AXIS + (scroll / Math.max(tall - room, 1)) * (room - Math.max((room / tall) * room, 24))}px`;
}

/** The overview of the whole run: density of events, faults, violations, and the visible section. */
const densities = new Map();
function densityOf(width) {
  if (!densities.has(width)) {
    densities.clear();
    const counts = new Float64Array(width + 1);
    for (const time of timeOf) counts[Math.floor(((time - firstNs) / wholeNs) * width)]++;
    densities.set(width, counts);
  }
  return densities.get(width);
}

function paintOverview() {
  const small = overview.getContext('2d');
  const [left, wide, high] = [view.left, Math.max(Math.floor(view.right - view.left), 1), 44];
  const x = (time) => left + ((time - firstNs) / wholeNs) * wide;
  const fill = (color, from, to, top, bottom) => {
    small.fillStyle = color;
    small.fillRect(from, top, to - from, bottom - top);
  };
  small.clearRect(0, 0, view.width, high);
  fill(look.panel, left, left + wide, 0, high);
  for (const lane of faultSection.lanes) for (const item of lane.layers[0].items) fill(look.fault, x(item.from), Math.max(x(item.to), x(item.from) + 1), 0, high);
  const counts = densityOf(wide);
  const most = counts.reduce((a, b) => Math.max(a, b), 1);
  counts.forEach((count, place) => count && fill(look.soft, left + place, left + place + 1, high - 4 - Math.sqrt(count / most) * (high - 12), high - 4));
  for (const { lines } of violations) for (const line of lines) if (timeOfLine(line) !== null) fill(look.bad, x(timeOfLine(line)) - 1, x(timeOfLine(line)) + 1, 0, high);
  small.strokeStyle = look.pick;
  small.lineWidth = 2;
  const [from, to] = [Math.max(x(view.from), left), Math.min(x(view.from + view.span), left + wide)];
  small.strokeRect(from + 1, 1, Math.max(to - from - 2, 2), high - 2);
  small.fillStyle = look.soft;
  small.font = FONT;
  small.textBaseline = 'middle';
  small.fillText('whole run', 8, high / 2);
}

/** The item under the pointer: marks before bars, short bars before long ones. */
function hit(x, y) {
  if (x < view.left || y < AXIS) return null;
  const row = rowsInSight().find((one) => y >= one.y - scroll + AXIS && y < one.y + one.height - scroll + AXIS);
  if (!row?.lane) return null;
  let top = row.y - scroll + AXIS + PAD;
  let best = null;
  for (const layer of row.lane.layers) {
    const high = layerHeight(layer);
    if (high && y >= top - 2 && y < top + high + 2) {
      const [height, gap] = ROW[layer.kind];
      const reach = layer.kind === 'marks' ? 6 : 2;
      const [early, late] = [view.time(x - reach), view.time(x + reach)];
      for (let place = firstAtLeast(layer.untils, early); place < layer.items.length && layer.items[place].from <= late; place++) {
        const item = layer.items[place];
        if ((item.over ?? item.to) < early || Math.floor((y - top) / (height + gap)) !== item.row) continue;
        const far = Math.max(item.from - view.time(x), view.time(x) - (item.over ?? item.to), 0);
        const rank = [far, (item.over ?? item.to) - item.from];
        if (!best || rank[0] < best.rank[0] || (rank[0] === best.rank[0] && rank[1] <= best.rank[1])) best = { item, lane: row.lane, rank };
      }
    }
    top += high;
  }
  return best;
}

/** Selects lines. `only`: show only the lanes that concern them. */
function choose(title, lines, bad, only) {
  chosen = { title, lines: new Set(lines), bad, only, at: -1 };
  if (only) chosen.lanes = new Set([...faultsAt(chosen.lines), ...[clientSection, ...lockSections].flatMap((section) => section.lanes.filter((lane) => concerns(lane, chosen.lines)))]);
  showPinned();
  arrange();
}

/** The faults at this time or shortly before. */
function faultsAt(lines) {
  const times = [...lines].map(timeOfLine).filter((time) => time !== null);
  const [from, to] = [Math.min(...times) - 1e9, Math.max(...times)];
  return faultSection.lanes.filter((lane) => lane.layers[0].items.some((item) => item.from <= to && item.to >= from));
}

function unchoose() {
  chosen = { lines: new Set(), bad: false, title: '', at: -1, only: false };
  if (location.hash) history.replaceState(null, '', location.pathname + location.search);
  showPinned();
  arrange();
}

/** Moves the view to the selected lines, with a margin. */
function showChosen() {
  const times = [...chosen.lines].map(timeOfLine).filter((time) => time !== null);
  if (!times.length) return;
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const room = Math.max((to - from) * 0.25, 2e6);
  reveal(chosen.lines);
  move(from - room, to - from + 2 * room);
}

/** Scrolls to the first lane with one of these lines, unless one is visible. */
function reveal(lines) {
  const concerned = rows.filter((row) => row.lane && concerns(row.lane, lines));
  const seen = (row) => row.y >= scroll && row.y + row.height <= scroll + view.height - AXIS;
  if (concerned.length && !concerned.some(seen)) scroll = concerned[0].y - HEADING;
}

function step(by) {
  const lines = [...chosen.lines].filter((line) => timeOfLine(line) !== null);
  if (!lines.length) return;
  chosen.at = (Math.max(chosen.at, by > 0 ? -1 : 0) + by + lines.length) % lines.length;
  center(lines[chosen.at]);
}

function center(line) {
  const at = timeOfLine(line);
  if (at === null) return;
  reveal(new Set([line]));
  move(at - view.span / 2, view.span);
  for (const entry of document.querySelectorAll('#pinned [data-line]')) entry.classList.toggle('current', Number(entry.dataset.line) === line);
}

function followHash() {
  const violation = violations.find((one) => `#${one.id}` === location.hash);
  const line = /^#line-(\d+)$/.exec(location.hash);
  if (violation) choose(`${violation.property}: ${violation.says}`, violation.lines, true, true);
  else if (line) choose('', [Number(line[1])], false, false);
  else return;
  showChosen();
  document.getElementById('timeline').scrollIntoView({ block: 'start' });
}
