// Rates and times of this node, as small graphs of the last minutes. They are made from what /metrics counts.

import { count, el, byId, seconds, write } from './dom.js';
import { metrics } from './net.js';

const EVERY_MS = 2000;
/** Samples in a graph: four minutes. */
const SAMPLES = 120;
/** Samples over which a quantile is taken. */
const OVER = 5;
const SVG = 'http://www.w3.org/2000/svg';

class Graph {
  constructor(title, shown) {
    this.shown = shown;
    this.samples = [];
    this.title = el('span', {}, title);
    this.value = el('span', { class: 'value' }, '–');
    this.top = el('span');
    this.svg = document.createElementNS(SVG, 'svg');
    this.svg.setAttribute('viewBox', `0 0 ${SAMPLES - 1} 100`);
    this.svg.setAttribute('preserveAspectRatio', 'none');
    this.svg.setAttribute('role', 'img');
    this.area = this.path('area');
    this.lead = this.path('lead');
    this.element = el('div', { class: 'graph' }, el('h2', {}, this.title, this.value), this.svg, el('div', { class: 'scale' }, el('span', {}, '4 min ago'), this.top));
  }

  path(name) {
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('class', name);
    this.svg.append(path);
    return path;
  }

  add(value) {
    this.samples.push(value);
    if (this.samples.length > SAMPLES) this.samples.shift();
    const known = this.samples.filter((sample) => sample != null);
    const most = Math.max(...known, 0);
    const height = (sample) => (most > 0 ? 97 - (sample / most) * 92 : 97);
    const start = SAMPLES - this.samples.length;
    // A gap where nothing was measured.
    const runs = [];
    this.samples.forEach((sample, at) => {
      if (sample == null) return;
      if (at === 0 || this.samples[at - 1] == null) runs.push([]);
      runs.at(-1).push([start + at, height(sample)]);
    });
    const line = (run) => run.map(([x, y]) => `${x} ${y.toFixed(1)}`).join('L');
    this.lead.setAttribute('d', runs.map((run) => `M${line(run)}`).join(''));
    this.area.setAttribute('d', runs.map((run) => `M${run[0][0]} 100L${line(run)}L${run.at(-1)[0]} 100Z`).join(''));
    write(this.value, this.shown(value));
    write(this.top, known.length ? `most ${this.shown(most)}` : '');
    this.svg.setAttribute('aria-label', `${this.title.textContent}: ${this.shown(value)}`);
  }

  rename(title) {
    if (this.title.textContent === title) return;
    write(this.title, title);
    this.samples = [];
  }
}

const rate = (value) => (value == null ? '–' : value < 10 && value > 0 ? value.toFixed(1) : count(Math.round(value)));
const graphs = {
  grants: new Graph('Grants a second', rate),
  waiters: new Graph('Waiting', (value) => count(value)),
  commit: new Graph('Commit, p99', seconds),
  sync: new Graph('Sync, p99', seconds),
};
/** The last scrapes, the newest last. */
let scrapes = [];

/** The quantile of what a histogram counted between two scrapes; `null`: nothing. */
export function quantile(before, after, name, label, of) {
  const buckets = [];
  for (const [series, value] of after) {
    if (!series.startsWith(`${name}_bucket{`) || !series.includes(label)) continue;
    const bound = /le="([^"]+)"/.exec(series)[1];
    buckets.push([bound === '+Inf' ? Infinity : Number(bound), value - (before.get(series) ?? 0)]);
  }
  buckets.sort(([a], [b]) => a - b);
  const all = buckets.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let [below, under] = [0, 0];
  for (const [bound, so] of buckets) {
    if (so >= of * all) return bound === Infinity ? below : below + ((bound - below) * (of * all - under)) / (so - under);
    [below, under] = [bound, so];
  }
  return below;
}

async function sample() {
  const now = { at: performance.now(), series: await metrics() };
  const last = scrapes.at(-1);
  // A counter that fell: the node was started again.
  if (last && (last.series.get('lockkeeper_grants_total') ?? 0) > (now.series.get('lockkeeper_grants_total') ?? 0)) scrapes = [];
  const [before, first] = [scrapes.at(-1), scrapes[0]];
  const leads = now.series.get('lockkeeper_leader') === 1;
  graphs.commit.rename(leads ? 'Commit, p99' : 'Apply, p99');
  graphs.waiters.add(now.series.get('lockkeeper_waiters') ?? null);
  if (before) {
    const grown = (now.series.get('lockkeeper_grants_total') ?? 0) - (before.series.get('lockkeeper_grants_total') ?? 0);
    graphs.grants.add((grown * 1000) / (now.at - before.at));
    const stage = (stage) => quantile(first.series, now.series, 'lockkeeper_stage_duration_seconds', `stage="${stage}"`, 0.99);
    graphs.commit.add(stage(leads ? 'commit' : 'apply'));
    graphs.sync.add(stage('sync'));
  }
  scrapes = [...scrapes.slice(-OVER + 1), now];
}

export function start() {
  byId('graphs').append(...Object.values(graphs).map((graph) => graph.element));
  const turn = async () => {
    try {
      if (!document.hidden) await sample();
    } catch {
      // The node does not answer: a gap, and what came before it is no base to count from.
      scrapes = [];
      Object.values(graphs).forEach((graph) => graph.add(null));
    }
    setTimeout(turn, EVERY_MS);
  };
  turn();
}
