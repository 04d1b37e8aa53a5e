'use strict';
// The data of the page, unpacked on demand.

const { report, timeline } = JSON.parse(document.getElementById('data').textContent);
const texts = timeline.texts;
const firstNs = timeline.first_ns;
const wholeNs = Math.max(timeline.last_ns - firstNs, 1000);

/** Lines and times of the events. Rows of `timeline.events` are: line, shape, values of the shape's holes. */
const lineOf = Float64Array.from(timeline.events, (row) => row[0]);
const timeOf = (() => {
  const holes = (value) => (value !== null && typeof value === 'object' ? Object.values(value).reduce((sum, part) => sum + holes(part), 0) : 1);
  const holeOfTime = timeline.shapes.map((shape) => {
    let hole = 2;
    for (const [name, value] of Object.entries(shape)) {
      if (name === 'time_ns') return hole;
      hole += holes(value);
    }
    return hole;
  });
  return Float64Array.from(timeline.events, (row) => row[holeOfTime[row[1]]]);
})();

/** The index of the event with this line, or -1. */
function placeOf(line) {
  const place = firstAtLeast(lineOf, line);
  return lineOf[place] === line ? place : -1;
}

/** The event with this line, as in the history. */
function eventOf(line) {
  const place = placeOf(line);
  if (place < 0) return null;
  const row = timeline.events[place];
  let hole = 2;
  const fill = (shape) => {
    if (Array.isArray(shape)) return shape.map(fill);
    if (shape !== null && typeof shape === 'object') return Object.fromEntries(Object.entries(shape).map(([name, part]) => [name, fill(part)]));
    const value = row[hole++];
    return shape === 1 ? texts[value] : value;
  };
  return fill(timeline.shapes[row[1]]);
}

/** The locks of an event. The end of an operation has those of its begin. */
const locksOf = (() => {
  let begun = null;
  return (event, line) => {
    begun ??= new Map(clientSection.lanes.flatMap((lane) => lane.layers[1].items.map((item) => [item.lines[1], item.lines[0]])));
    return [event.lock ?? (begun.has(line) && eventOf(begun.get(line)).lock) ?? []].flat().filter(Boolean);
  };
})();

function timeOfLine(line) {
  const place = placeOf(line);
  return place < 0 ? null : timeOf[place];
}

/** The first index in a sorted array whose value is at least `least`. */
function firstAtLeast(values, least) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A layer of bars sorted by begin, with running maxima of their ends, to find the visible ones by binary search. */
function bars(kind, items) {
  let latest = -Infinity;
  const untils = Float64Array.from(items, (item) => (latest = Math.max(latest, item.over ?? item.to)));
  const rows = items.reduce((most, item) => Math.max(most, item.row + 1), 0);
  return { kind, items, untils, rows };
}

const tenure = ([from, to, over, row, token, session, client, mode, end, line, ended]) =>
  ({ kind: 'tenure', from, to, over, row, token, session: texts[session], client: texts[client], mode: texts[mode], end: texts[end], lines: [line, ended] });
const operation = (kind) => ([from, to, row, f, how, client, line, ended]) =>
  ({ kind, from, to, row, f: texts[f], how: texts[how], client: texts[client], lines: [line, ended] });
const session = ([from, to, row, name, end, line, ended]) => ({ kind: 'session', from, to, row, session: texts[name], end: texts[end], lines: [line, ended] });
const mark = ([at, what, line, other]) => ({ kind: 'mark', from: at, to: at, row: 0, what, lines: [line, other] });
const span = (kind, more) => ({ kind, from: more.from_ns, to: more.to_ns, row: 0, lines: more.lines });

const lockLane = ({ name, tenures, waits, marks }) => ({
  name,
  layers: [bars('tenures', tenures.map(tenure)), bars('waits', waits.map(operation('wait'))), bars('marks', marks.map(mark).sort(byBegin))],
});
const byBegin = (a, b) => a.from - b.from;

/** All lanes: a name, and layers of bars from top to bottom. */
const sections = [
  {
    title: 'Faults',
    lanes: timeline.faults.map(({ name, spans }) => ({ name, layers: [bars('fault', spans.map((one) => ({ ...span('fault', one), name, hit: one.hit })))] })),
  },
  {
    title: 'Nodes',
    lanes: timeline.nodes.map(({ name, led, down, absent, faulty, marks }) => ({
      name,
      layers: [
        // A separate layer: in the leader's layer they would be skipped as covered by its bar.
        bars('faulty', faulty.map(([fault, one, row]) => ({ ...span('faulty', one), row, name: fault, hit: one.hit }))),
        bars('node', [...led.map(([term, one]) => ({ ...span('led', one), term })), ...down.map((one) => span('down', one)), ...absent.map((one) => span('absent', one))].sort(byBegin)),
        bars('marks', marks.map(mark).sort(byBegin)),
      ],
    })),
  },
  {
    title: 'Clients',
    lanes: timeline.clients.map(({ name, sessions, operations, marks }) => ({
      name,
      layers: [bars('sessions', sessions.map(session)), bars('operations', operations.map(operation('operation'))), bars('marks', marks.map(mark).sort(byBegin))],
    })),
  },
  { title: 'Locks', lanes: timeline.locks.map(lockLane) },
  ...timeline.probes.map(({ name, says, locks }) => ({ title: `Probes ${name}/…`, says, lanes: locks.map(lockLane) })),
];
const [faultSection, nodeSection, clientSection, ...lockSections] = sections;
const allLocks = lockSections.flatMap((section) => section.lanes);

/** Whether the lane has an item with one of these lines. */
function concerns(lane, lines) {
  return lane.layers.some((layer) => layer.items.some((item) => lines.has(item.lines[0]) || lines.has(item.lines[1])));
}

/** The violations found by the checker, with their properties. */
const violations = report.findings
  .filter((finding) => finding.verdict === 'violated')
  .flatMap((finding) => finding.shown.map((one) => ({ ...one, property: finding.property })));
violations.forEach((one, place) => (one.id = `violation-${place + 1}`));
