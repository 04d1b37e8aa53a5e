// Painting of visible lanes, bars and marks.

const AXIS = 24;
const HEADING = 22;
const PAD = 5;
/** For one row of each layer: its height, and the gap below. */
const ROW = { fault: [14, 2], faulty: [4, 1], node: [16, 2], tenures: [16, 2], waits: [4, 1], sessions: [5, 2], operations: [9, 2], marks: [9, 0] };

const canvas = document.getElementById('canvas');
const pen = canvas.getContext('2d');
/** Red is reserved for violations, amber for faults. */
const HUES = [205, 160, 265, 185, 300, 95, 230, 135];
let look = {};

function readLook() {
  const style = getComputedStyle(document.documentElement);
  const names = ['ground', 'panel', 'text', 'soft', 'rule', 'band', 'fault', 'fault-edge', 'bad', 'pick', 'lead', 'lead-text', 'down', 'wait', 'unknown', 'refused', 'lost', 'forced', 'quiet'];
  look = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  look.dark = matchMedia('(prefers-color-scheme: dark)').matches;
}

const hueOf = (() => {
  const known = new Map();
  return (client) => {
    if (!known.has(client)) known.set(client, HUES[known.size % HUES.length]);
    return known.get(client);
  };
})();
const toneOf = (client, faint) => {
  const hue = hueOf(client);
  if (look.dark) return faint ? `hsl(${hue} 30% 26%)` : `hsl(${hue} 42% 40%)`;
  return faint ? `hsl(${hue} 45% 88%)` : `hsl(${hue} 48% 72%)`;
};

const layerHeight = (layer) => (layer.items.length ? layer.rows * (ROW[layer.kind][0] + ROW[layer.kind][1]) : 0);
const laneHeight = (lane) => Math.max(2 * PAD + lane.layers.reduce((sum, layer) => sum + layerHeight(layer), 0), 20);

/** Calls `paint` for the visible items; skips an item that would cover the same pixels as the one before. */
function eachInSight(layer, view, paint) {
  const [height, gap] = ROW[layer.kind];
  const painted = new Float64Array(layer.rows).fill(-Infinity);
  for (let place = firstAtLeast(layer.untils, view.from); place < layer.items.length; place++) {
    const item = layer.items[place];
    if (item.from > view.from + view.span) break;
    const left = view.x(item.from);
    const right = Math.max(view.x(item.to), left + 1);
    // Bars narrower than a pixel are merged. Selected items are always painted.
    if (right <= painted[item.row] + 0.6 && item.from !== item.to && !isChosen(item)) continue;
    painted[item.row] = right;
    paint(item, left, right, item.row * (height + gap), height);
  }
}

const isChosen = (item) => chosen.lines.size > 0 && (chosen.lines.has(item.lines[0]) || chosen.lines.has(item.lines[1]));

function paintLane(lane, top, view) {
  let y = top + PAD;
  // If the filter names a client, bars of other clients are faded.
  const named = lane.name.toLowerCase().includes(wanted);
  for (const layer of lane.layers) {
    if (!layer.items.length) continue;
    const outlined = [];
    const marks = new Map();
    eachInSight(layer, view, (item, left, right, down, height) => {
      if (item.kind === 'mark' && !isChosen(item)) {
        if (left - (marks.get(item.what) ?? -Infinity) < 2) return;
        marks.set(item.what, left);
      }
      pen.globalAlpha = wanted && item.client && !named && !item.client.toLowerCase().includes(wanted) ? 0.25 : 1;
      PAINTERS[item.kind](item, left, right, y + down, height, view);
      pen.globalAlpha = 1;
      if (isChosen(item)) outlined.push([left, right, y + down, height]);
    });
    pen.strokeStyle = chosen.bad ? look.bad : look.pick;
    pen.lineWidth = 2;
    for (const [left, right, at, height] of outlined) pen.strokeRect(left - 2, at - 2, Math.max(right - left, 3) + 4, height + 4);
    y += layerHeight(layer);
  }
}

/** Paints as much of the text as fits. */
function label(text, left, right, y, height, color, view) {
  const from = Math.max(left, view.left) + 4;
  const room = Math.floor((Math.min(right, view.right) - from - 2) / 6.1);
  if (room < Math.min(text.length, 5)) return;
  pen.fillStyle = color;
  pen.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, from, y + height / 2 + 0.5);
}

function box(left, right, y, height, color) {
  pen.fillStyle = color;
  pen.fillRect(left, y, right - left, height);
}

function hatch(left, right, y, height, color, view) {
  const from = Math.max(left, view.left);
  const to = Math.min(right, view.right);
  if (to - from < 2) return;
  pen.save();
  pen.beginPath();
  pen.rect(from, y, to - from, height);
  pen.clip();
  pen.strokeStyle = color;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let x = from - height - (from % 6); x < to; x += 6) {
    pen.moveTo(x, y + height);
    pen.lineTo(x + height, y);
  }
  pen.stroke();
  pen.restore();
}

const PAINTERS = {
  fault(item, left, right, y, height, view) {
    box(left, right, y, height, look['fault-edge']);
    label(item.hit || item.name, left, right, y, height, look.ground, view);
  },
  led(item, left, right, y, height, view) {
    box(left, right, y, height, look.lead);
    label(`leads term ${item.term}`, left, right, y, height, look['lead-text'], view);
  },
  down(item, left, right, y, height, view) {
    box(left, right, y, height, look.ground);
    hatch(left, right, y, height, look.down, view);
    pen.strokeStyle = look.down;
    pen.lineWidth = 1;
    pen.strokeRect(left + 0.5, y + 0.5, Math.max(right - left - 1, 1), height - 1);
  },
  absent(item, left, right, y, height) {
    box(left, right, y + height / 2 - 1, 2, look.rule);
  },
  faulty(item, left, right, y, height) {
    box(left, right, y, height, look['fault-edge']);
  },
  tenure(item, left, right, y, height, view) {
    const tail = view.x(item.over);
    if (tail > right) box(right, tail, y + height / 2 - 2, 4, toneOf(item.client, true));
    const exclusive = item.mode === 'exclusive';
    box(left, right, y, height, toneOf(item.client, !exclusive));
    if (!exclusive && right - left > 3) {
      pen.strokeStyle = toneOf(item.client, false);
      pen.lineWidth = 1.5;
      pen.strokeRect(left + 0.75, y + 0.75, right - left - 1.5, height - 1.5);
    }
    if (right - left > 3) box(left, left + 1, y, height, look.text);
    label(`${item.token} ${item.client}${exclusive ? '' : `, ${item.mode}`}`, left, right, y, height, look.text, view);
  },
  wait(item, left, right, y, height) {
    box(left, right, y, height, item.how === 'unknown' ? look.unknown : look.wait);
    if (item.how !== 'ok' && right - left > 4) box(right - 2, right, y - 1, height + 2, look.text);
  },
  session(item, left, right, y, height) {
    box(left, right, y, height, look.quiet);
    if (item.end === 'deadline' && right - left > 4) box(right - 2, right, y - 2, height + 4, look.lost);
  },
  operation(item, left, right, y, height, view) {
    const tone = item.how === 'ok' ? toneOf(item.f, false) : item.how === 'unknown' ? look.unknown : look.refused;
    box(left, right, y, height, tone);
    if (height > 8) {
      pen.font = '8.5px system-ui, sans-serif';
      label(item.f, left, right, y, height, look.text, view);
      pen.font = FONT;
    }
  },
  mark(item, left, right, y, height) {
    (MARKS[item.what] ?? MARKS.other)(left, y, height);
  },
};

const FONT = '11px system-ui, -apple-system, "Segoe UI", sans-serif';

function shape(color, ...points) {
  pen.fillStyle = color;
  pen.beginPath();
  points.forEach(([x, y], place) => (place ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
  pen.fill();
}
function cross(x, y, height, color) {
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(x - 3.5, y + 1);
  pen.lineTo(x + 3.5, y + height - 1);
  pen.moveTo(x + 3.5, y + 1);
  pen.lineTo(x - 3.5, y + height - 1);
  pen.stroke();
}
const tick = (color) => (x, y, height) => box(x - 0.5, x + 0.5, y + 2, height - 2, color());

/** Important marks have their own shape; all others are ticks. */
const MARKS = {
  refused: (x, y, height) => cross(x, y, height, look.refused),
  lost: (x, y, height) => shape(look.lost, [x, y], [x + 4.5, y + height / 2], [x, y + height], [x - 4.5, y + height / 2]),
  died: (x, y, height) => cross(x, y, height, look.text),
  force_release: (x, y, height) => shape(look.forced, [x - 5, y], [x + 5, y], [x, y + height]),
  revoked: (x, y, height) => shape(look.forced, [x - 3, y + 2], [x + 3, y + 2], [x, y + height]),
  unknown: (x, y, height) => box(x - 2, x + 2, y + 2, height - 3, look.unknown),
  snapshot: (x, y, height) => shape(look.lead, [x - 4, y], [x + 4, y], [x + 4, y + height], [x - 4, y + height]),
  other: tick(() => look.soft),
};

function paintAxis(view) {
  box(0, view.width, 0, AXIS, look.panel);
  const step = niceStep(view.span / Math.max((view.right - view.left) / 110, 1));
  const digits = Math.min(Math.max(Math.ceil(9 - Math.log10(step) - 1e-9), 0), 9);
  pen.textAlign = 'center';
  for (let at = Math.ceil((view.from - firstNs) / step) * step; at <= view.from - firstNs + view.span; at += step) {
    const x = view.x(at + firstNs);
    box(x, x + 1, AXIS - 5, view.height, look.rule);
    pen.fillStyle = look.soft;
    if (x > view.left + 24 && x < view.right - 24) pen.fillText(`${(at / 1e9).toFixed(digits)} s`, x, AXIS / 2 - 1);
  }
  pen.textAlign = 'left';
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}
