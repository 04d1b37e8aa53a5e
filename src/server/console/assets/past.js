// What this node recorded in the last ten minutes: samples for the graphs, and who led. The node keeps it, so a page that is opened after an
// incident shows it too.

import { Refused, call, nodeNow } from './net.js';

/** The time that the node keeps, and the graphs show. */
export const SPAN_MS = 600_000;
const EVERY_MS = 5000;
const AGAIN_MS = 250;

/** The process that the numbers belong to: another one counts anew. */
let start = null;
let last = { sample: 0, event: 0 };
/** The oldest first, by the browser's monotonic clock: a wall clock may jump. */
let samples = [];
let elections = [];
let timer = 0;
let listener = () => {};

export const recorded = () => ({ samples, elections, sampleMs: EVERY_MS });

async function ask() {
  let told = await call('history', last);
  if (told.start !== start && start !== null) {
    // The node was started again: what it recorded before is known here alone.
    last = { sample: 0, event: 0 };
    told = await call('history', last);
  }
  start = told.start;
  const now = performance.now();
  const news = [];
  for (const { age_ms, ...sample } of told.samples) samples.push({ at: now - age_ms, ...sample });
  for (const { age_ms, ...event } of told.events) {
    if (event.kind === 'leader') elections.push({ at: now - age_ms, ...event });
    news.push({ ...event, at: nodeNow() - age_ms });
  }
  last = { sample: told.samples.at(-1)?.number ?? last.sample, event: told.events.at(-1)?.number ?? last.event };
  const isRecent = ({ at }) => now - at <= SPAN_MS;
  [samples, elections] = [samples.filter(isRecent), elections.filter(isRecent)];
  listener(news);
}

async function turn() {
  let pause = EVERY_MS;
  try {
    if (!document.hidden) await ask();
  } catch (error) {
    // Without the right to see it, or without the node, the graphs stay as they are, and move on with the time.
    if (error instanceof Refused) pause *= 2;
    listener([]);
  }
  timer = setTimeout(turn, pause);
}

/** Asks at once: something has changed. */
export function refresh() {
  clearTimeout(timer);
  timer = setTimeout(turn, AGAIN_MS);
}

/** `told` is called with the events that are new, the oldest first, whenever the node was asked. */
export function begin(told) {
  listener = told;
  turn();
}
