//! The sequential model of one lock: its holders and the highest token so far.

use super::wgl::Model;
use crate::history::Mode;

/// The acquires that may hold the lock; each has an index, its seat.
#[derive(Debug, Default)]
pub(super) struct LockModel {
    seats: Vec<Seat>,
    sessions: Vec<String>,
}

/// An acquire that may hold the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) mode: Mode,
    /// `None`: the token is unknown.
    pub(super) token: Option<u64>,
    pub(super) session: u16,
}

/// The state of the lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct State {
    /// Seats of the holders.
    holders: Vec<u16>,
    last_token: u64,
}

/// The steps of a lock, by seats.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// The acquire is granted.
    Take(u16),
    /// The holder releases, is cancelled, revoked or expires.
    Leave(u16),
    /// A session is closed: its grants end, if it has any.
    LeaveAll(u16),
    /// The acquire was observed not to hold the lock.
    Absent(u16),
    /// The acquire was observed to hold the lock.
    Present(u16),
    /// An acquire in this mode was refused as busy.
    Busy(Mode),
    /// All holders were read: token and session.
    View(Vec<(u64, u16)>),
}

impl LockModel {
    pub(super) fn seat(&mut self, seat: Seat) -> u16 {
        self.seats.push(seat);
        number(self.seats.len() - 1)
    }

    pub(super) fn session(&mut self, name: &str) -> u16 {
        let known = self.sessions.iter().position(|known| known == name);
        number(known.unwrap_or_else(|| {
            self.sessions.push(name.to_owned());
            self.sessions.len() - 1
        }))
    }

    fn of(&self, seat: u16) -> &Seat {
        &self.seats[usize::from(seat)]
    }

    fn fits(&self, state: &State, mode: Mode) -> bool {
        let mut held = state.holders.iter().map(|seat| self.of(*seat).mode);
        match mode {
            Mode::Exclusive => state.holders.is_empty(),
            Mode::Shared => held.all(|mode| mode == Mode::Shared),
            Mode::Permits(size) => held.all(|held| held == mode) && state.holders.len() < size as usize,
        }
    }

    /// Compares holders with a read: by token if it is known, otherwise by session.
    fn shows(&self, state: &State, view: &[(u64, u16)]) -> bool {
        let mut unknown: Vec<_> = view.to_vec();
        let (told, untold): (Vec<&Seat>, Vec<&Seat>) =
            state.holders.iter().map(|seat| self.of(*seat)).partition(|seat| seat.token.is_some());
        let mut take = |found: &dyn Fn(&(u64, u16)) -> bool| match unknown.iter().position(found) {
            Some(at) => {
                unknown.swap_remove(at);
                true
            }
            None => false,
        };
        told.iter().all(|seat| take(&|(token, _)| seat.token == Some(*token)))
            && untold.iter().all(|seat| take(&|(_, session)| seat.session == *session))
            && unknown.is_empty()
    }
}

/// The number of seats is limited by the number of checked operations.
fn number(at: usize) -> u16 {
    u16::try_from(at).unwrap_or(u16::MAX)
}

impl Model for LockModel {
    type Step = Step;
    type State = State;

    fn apply(&self, state: &State, step: &Step) -> Option<State> {
        match step {
            Step::Take(seat) => {
                let Seat { mode, token, .. } = self.of(*seat);
                let rises = token.is_none_or(|token| token > state.last_token);
                if !rises || !self.fits(state, *mode) {
                    return None;
                }
                let mut after = state.clone();
                after.last_token = token.unwrap_or(state.last_token);
                after.holders.push(*seat);
                after.holders.sort_unstable();
                Some(after)
            }
            Step::Leave(seat) => {
                let at = state.holders.iter().position(|holder| holder == seat)?;
                let mut after = state.clone();
                after.holders.remove(at);
                Some(after)
            }
            Step::LeaveAll(session) => {
                let mut after = state.clone();
                after.holders.retain(|seat| self.of(*seat).session != *session);
                Some(after)
            }
            Step::Absent(seat) => (!state.holders.contains(seat)).then(|| state.clone()),
            Step::Present(seat) => state.holders.contains(seat).then(|| state.clone()),
            Step::Busy(mode) => (!self.fits(state, *mode)).then(|| state.clone()),
            Step::View(view) => self.shows(state, view).then(|| state.clone()),
        }
    }

    fn reads(step: &Step) -> bool {
        match step {
            Step::Take(_) | Step::Leave(_) | Step::LeaveAll(_) => false,
            Step::Absent(_) | Step::Present(_) | Step::Busy(_) | Step::View(_) => true,
        }
    }

    /// Grants happen in the order of their tokens.
    fn rank(&self, step: &Step) -> Option<u64> {
        if let Step::Take(seat) = step { self.of(*seat).token } else { None }
    }
}
