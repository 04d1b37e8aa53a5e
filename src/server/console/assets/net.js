// Calls to the node that serves this page, and the token that shows who calls.

const TOKEN = 'lockkeeper-token';
const CALL_LIMIT_MS = 6000;

/** By how much the node's clock is ahead of the browser's. */
let ahead = 0;

/** The node's wall clock now. */
export const nodeNow = () => Date.now() + ahead;

/** The node answered that it does not do it. */
export class Refused extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** The node did not answer. */
export class Lost extends Error {}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

function request(body) {
  const headers = { 'content-type': 'application/json', 'x-lockkeeper-console': '1' };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  return { method: 'POST', headers, body: JSON.stringify(body), cache: 'no-store', credentials: 'omit' };
}

async function refusal(answer) {
  const text = await answer.text();
  try {
    const { reason, message } = JSON.parse(text);
    return new Refused(answer.status, reason, message);
  } catch {
    return new Refused(answer.status, 'OTHER', text.trim() || `the node answered with ${answer.status}`);
  }
}

/** One call. Throws `Refused` or `Lost`. */
export async function call(name, body = {}, limitMs = CALL_LIMIT_MS) {
  try {
    const answer = await fetch(`/console/api/${name}`, { ...request(body), signal: AbortSignal.timeout(limitMs) });
    if (!answer.ok) throw await refusal(answer);
    const told = await answer.json();
    if (told.now) ahead = told.now - Date.now();
    return told;
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Lost(`no answer: ${error.message}`);
  }
}

/** What the node counts and measures: the value of each series by its name with its labels. */
export async function metrics() {
  const answer = await fetch('/metrics', { cache: 'no-store', signal: AbortSignal.timeout(CALL_LIMIT_MS) });
  const series = new Map();
  for (const line of (await answer.text()).split('\n')) {
    const end = line.lastIndexOf(' ');
    if (end > 0 && line[0] !== '#') series.set(line.slice(0, end), Number(line.slice(end + 1)));
  }
  return series;
}

/** The lines of the feed, until it ends. `signal` ends it here. */
export async function* feed(body, signal) {
  let answer;
  try {
    answer = await fetch('/console/api/feed', { ...request(body), signal });
  } catch (error) {
    throw new Lost(error.message);
  }
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
