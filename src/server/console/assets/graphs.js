// Rates and times of this node in the last ten minutes, as small graphs of what the node recorded.

import { byId, clock, count, el, seconds, setAttribute, write } from './dom.js';
import { nodeNow } from './net.js';
import { SPAN_MS, recorded } from './past.js';

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 600;
const HEIGHT = 100;
/** Samples that are further apart have a gap between them: nobody recorded, or the page was not told. */
const GAP = 2.5;

const x = (at, now) => ((at - now + SPAN_MS) / SPAN_MS) * WIDTH;

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

class Graph {
  constructor(title, shown, value) {
    this.shown = shown;
    this.value = value;
    this.title = el('span', {}, title);
    this.latest = el('span', { class: 'value' }, '–');
    this.top = el('span');
    this.svg = shape('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img' });
    this.area = shape('path', { class: 'area' });
    this.lead = shape('path', { class: 'lead' });
    this.marks = shape('g', {});
    this.svg.append(this.marks, this.area, this.lead);
    this.element = el('div', { class: 'graph' }, el('h2', {}, this.title, this.latest), this.svg, el('div', { class: 'scale' }, el('span', {}, '10 min ago'), this.top));
  }

  draw({ samples, elections, sampleMs }, now, marks) {
    const points = samples.map((sample) => ({ at: sample.at, value: this.value(sample, samples.at(-1)) }));
    const known = points.filter(({ value }) => value != null);
    const most = Math.max(...known.map(({ value }) => value), 0);
    const height = (value) => (most > 0 ? 97 - (value / most) * 88 : 97);
    const runs = [];
    let before = null;
    for (const { at, value } of points) {
      if (value != null) {
        if (before == null || at - before > GAP * sampleMs) runs.push([]);
        runs.at(-1).push([x(at, now).toFixed(1), height(value).toFixed(1)]);
      }
      before = value == null ? null : at;
    }
    // One point alone would be no line.
    const line = (run) => (run.length > 1 ? run : [run[0], [Number(run[0][0]) + 1, run[0][1]]]).map((point) => point.join(' ')).join('L');
    this.lead.setAttribute('d', runs.map((run) => `M${line(run)}`).join(''));
    this.area.setAttribute('d', runs.map((run) => `M${run[0][0]} ${HEIGHT}L${line(run)}L${run.at(-1)[0]} ${HEIGHT}Z`).join(''));
    this.marks.replaceChildren(...marks());
    const latest = this.shown(points.at(-1)?.value);
    write(this.latest, latest);
    write(this.top, known.length ? `most ${this.shown(most)}` : '');
    const led = elections.length ? `; ${elections.length} time${elections.length === 1 ? '' : 's'} a leader was elected` : '';
    setAttribute(this.svg, 'aria-label', `${this.title.textContent}: ${latest}, most ${this.shown(most)} in ten minutes${led}`);
  }
}

const rate = (value) => (value == null ? '–' : value < 10 && value > 0 ? value.toFixed(1) : count(Math.round(value)));
/** The time to commit is that of a leader, the time to apply that of the others: only those of the present role are compared. */
const sameRole = (sample, last) => (sample.leads === last.leads ? sample.commit : null);
const graphs = {
  grants: new Graph('Grants a second', rate, ({ grants }) => grants),
  waiters: new Graph('Waiting', (value) => count(value), ({ waiters }) => waiters),
  commit: new Graph('Commit, p99', seconds, sameRole),
  sync: new Graph('Sync, p99', seconds, ({ sync }) => sync),
};

/** The times at which this node could not serve, and the elections. */
function marks({ samples, elections, sampleMs }, now) {
  const outages = samples.filter(({ serving }) => !serving).map(({ at }) => shape('rect', { class: 'outage', x: x(at - sampleMs, now), y: 0, width: (sampleMs / SPAN_MS) * WIDTH, height: HEIGHT }));
  const lines = elections.map(({ at, leader, term }) => {
    const mark = shape('path', { class: 'election', d: `M${x(at, now).toFixed(1)} 0V${HEIGHT}` });
    const title = shape('title', {});
    title.textContent = `${clock(nodeNow() - (now - at))}: node ${leader} leads, term ${term}`;
    mark.append(title);
    return mark;
  });
  return [...outages, ...lines];
}

/** Draws what is recorded by now. */
export function draw() {
  const all = recorded();
  const now = performance.now();
  write(graphs.commit.title, all.samples.at(-1)?.leads === false ? 'Apply, p99' : 'Commit, p99');
  for (const graph of Object.values(graphs)) graph.draw(all, now, () => marks(all, now));
}

export function start() {
  byId('graphs').append(...Object.values(graphs).map((graph) => graph.element));
  draw();
}
