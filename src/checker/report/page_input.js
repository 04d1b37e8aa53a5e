// Pointer and keyboard input.

function listen() {
  let drag = null;
  canvas.addEventListener('pointerdown', (event) => {
    drag = { x: event.offsetX, y: event.offsetY, from: view.from, scroll, far: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (!drag) return showTip(event);
    const [right, down] = [event.offsetX - drag.x, event.offsetY - drag.y];
    drag.far ||= Math.abs(right) + Math.abs(down) > 4;
    if (!drag.far) return;
    tip.hidden = true;
    canvas.classList.add('dragged');
    scroll = drag.scroll - down;
    move(drag.from - (right / (view.right - view.left)) * view.span, view.span);
  });
  canvas.addEventListener('pointerup', (event) => {
    canvas.classList.remove('dragged');
    if (drag && !drag.far) clicked(event.offsetX, event.offsetY);
    drag = null;
  });
  canvas.addEventListener('pointercancel', () => (drag = null));
  canvas.addEventListener('pointerleave', () => (tip.hidden = true));
  canvas.addEventListener('wheel', wheeled, { passive: false });
  canvas.addEventListener('keydown', pressed);
  document.getElementById('rail').addEventListener('pointermove', (event) => {
    if (!event.buttons) return;
    scroll += (event.movementY / (view.height - AXIS)) * tall;
    move(view.from, view.span);
  });
  const pull = (event) => {
    if (event.type === 'pointermove' && !event.buttons) return;
    overview.setPointerCapture(event.pointerId);
    const at = firstNs + ((event.offsetX - view.left) / (view.right - view.left)) * wholeNs;
    move(at - view.span / 2, view.span);
  };
  overview.addEventListener('pointerdown', pull);
  overview.addEventListener('pointermove', pull);
  filterBox.addEventListener('input', () => {
    scroll = 0;
    arrange();
  });
  document.getElementById('in').addEventListener('click', () => zoom(0.5));
  document.getElementById('out').addEventListener('click', () => zoom(2));
  document.getElementById('all').addEventListener('click', () => move(firstNs, wholeNs * 1.02));
  document.getElementById('help').addEventListener('click', toggleKeys);
  addEventListener('resize', arrange);
  addEventListener('hashchange', followHash);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readLook();
    redraw();
  });
}

function wheeled(event) {
  event.preventDefault();
  tip.hidden = true;
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (sideways || event.shiftKey) return move(view.from + ((sideways ? event.deltaX : event.deltaY) / 700) * view.span, view.span);
  if (event.offsetX < view.left || event.altKey) {
    scroll += event.deltaY;
    return move(view.from, view.span);
  }
  zoom(Math.exp(Math.min(Math.max(event.deltaY, -120), 120) * 0.003), event.offsetX);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = {
    ArrowLeft: () => move(view.from - view.span * 0.15, view.span),
    ArrowRight: () => move(view.from + view.span * 0.15, view.span),
    ArrowUp: () => ((scroll -= 60), move(view.from, view.span)),
    ArrowDown: () => ((scroll += 60), move(view.from, view.span)),
    PageUp: () => ((scroll -= view.height - 80), move(view.from, view.span)),
    PageDown: () => ((scroll += view.height - 80), move(view.from, view.span)),
    Home: () => move(firstNs - view.span * 0.02, view.span),
    End: () => move(firstNs + wholeNs - view.span * 0.98, view.span),
    '+': () => zoom(0.6),
    '=': () => zoom(0.6),
    '-': () => zoom(1 / 0.6),
    0: () => move(firstNs, wholeNs * 1.02),
    n: () => step(1),
    p: () => step(-1),
    '?': toggleKeys,
    Escape: unchoose,
  };
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function clicked(x, y) {
  const row = rowsInSight().find((one) => y >= Math.max(one.y - scroll + AXIS, AXIS) && y < one.y + one.height - scroll + AXIS);
  if (row && !row.lane) {
    row.section.open = !row.section.open;
    return arrange();
  }
  if (row?.lane && x < view.left) {
    filterBox.value = filterBox.value === row.lane.name ? '' : row.lane.name;
    return arrange();
  }
  const found = hit(x, y);
  if (found) pin(found);
}
