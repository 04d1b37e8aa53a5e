// What an operator does, each with a dialog that says what follows from it. The node checks the rights, as it does for the command line.

import { byId, count, moment, visible, write } from './dom.js';
import { call } from './net.js';

/** What the dialogs are about. */
let asked = null;

export function askToForce(lock, holder) {
  asked = { lock: lock.name, token: holder.token };
  write(byId('force-lock'), visible(lock.name));
  write(byId('force-holder'), `from ${visible(holder.label || 'unnamed')}, token ${holder.token}, held since ${moment(holder.since)}`);
  byId('force-error').hidden = true;
  // Such a lock opens at once, whatever is chosen.
  write(byId('force-told'), lock.is_entry ? 'the audit trail gets it' : 'its holder and the audit trail get it');
  byId('force-entry').hidden = !lock.is_entry;
  byId('force-choice').hidden = lock.is_entry;
  byId('force-form').reset();
  byId('force').showModal();
  byId('force-reason').focus();
}

/** Asks whether to do something. `act` does it, and throws if nothing was changed. */
function ask({ title, what, follows, button, needsReason, act }) {
  asked = { act };
  write(byId('act-title'), title);
  write(byId('act-what'), what);
  write(byId('act-follows'), follows);
  write(byId('act-go'), button);
  byId('act-error').hidden = true;
  byId('act-form').reset();
  byId('act-reasons').hidden = !needsReason;
  byId('act-reason').required = needsReason;
  byId('act-reasons').hidden = !needsReason;
  byId('act').showModal();
  byId(needsReason ? 'act-reason' : 'act-cancel').focus();
}

export function askToClose(session, label, { grants, waits } = {}) {
  const holds = grants == null ? 'All its locks open' : grants === 1 ? 'Its lock opens' : `Its ${count(grants)} locks open`;
  const ends = waits ? `, and ${waits === 1 ? 'its wait ends' : `its ${count(waits)} waits end`}` : '';
  ask({
    title: 'Close the session',
    what: `${visible(label || 'unnamed')}  ${session}`,
    follows: `${holds} at once, without a lock-delay${ends}. Its client is told when it next renews. Only for a client that is known to be dead: otherwise two may work at the same time.`,
    button: 'Close it',
    needsReason: true,
    act: (reason) => call('close-session', { id: session, reason }),
  });
}

export function askToRemove(lock, waiter) {
  ask({
    title: 'Remove from the queue',
    what: visible(lock.name),
    follows: `${visible(waiter.label || 'unnamed')} no longer waits: its client gets an error, and does not try again by itself. An acquire of several locks leaves all its queues. The audit trail gets it.`,
    button: 'Remove',
    needsReason: false,
    act: async () => {
      const { removed } = await call('remove-waiter', { name: lock.name, ticket: waiter.ticket });
      if (removed == null) throw new Error('it no longer waited: nothing was changed');
    },
  });
}

export function askToLift(lock) {
  ask({
    title: 'Lift the lock-delay',
    what: visible(lock.name),
    follows: 'The lock opens now, and the first in the queue gets it. Only if its last holder is known to be dead: one that is alive may still be working. The audit trail gets it.',
    button: 'Lift it',
    needsReason: false,
    act: async () => {
      const { lifted_ms } = await call('lift-delay', { name: lock.name });
      if (lifted_ms == null) throw new Error('it had no lock-delay of its own any more: nothing was changed');
    },
  });
}

/** Makes a dialog work. `act` does what it is for; an error of it is shown there. */
function connect(id, act, done) {
  byId(`${id}-cancel`).addEventListener('click', () => byId(id).close());
  byId(`${id}-form`).addEventListener('submit', async (event) => {
    event.preventDefault();
    const [error, go] = [byId(`${id}-error`), byId(`${id}-go`)];
    go.disabled = true;
    error.hidden = true;
    try {
      await act();
      byId(id).close();
      done();
    } catch (failure) {
      error.hidden = false;
      write(error, visible(failure.message));
    }
    go.disabled = false;
  });
}

/** Makes the dialogs work. `done` is called after something was done. */
export function start(done) {
  const force = async () => {
    const body = { name: asked.lock, token: asked.token, reason: byId('force-reason').value, now: byId('force-now').checked };
    const { forced } = await call('force-release', body);
    if (forced.length === 0) throw new Error('it was no longer held by this token: nothing was changed');
  };
  connect('force', force, done);
  connect('act', () => asked.act(byId('act-reason').value), done);
}
