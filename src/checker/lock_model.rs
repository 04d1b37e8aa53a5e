//! The sequential model of one lock: its holders and the highest token so far.

use super::wgl::Model;
use crate::history::Mode;

/// The acquires that may hold the lock. Each has an index, its seat.
#[derive(Debug, Default)]
pub(super) struct LockModel {
    seats: Vec<Seat>,
    sessions: Vec<String>,
}

/// An acquire that may hold the lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) mode: Mode,
    /// The token, if it is known.
    pub(super) token: Option<u64>,
    pub(super) session: u16,
}

/// The state of the lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct LockState {
    /// Seats of the holders.
    holders: Vec<u16>,
    last_token: u64,
}

/// The steps of a lock, by seats.
#[derive(Clone, Debug)]
pub(super) enum LockStep {
    /// The acquire is granted.
    Take(u16),
    /// The holder releases, is cancelled, revoked or expires.
    Leave(u16),
    /// A session is closed. Its grants end, if it has any.
    LeaveAll(u16),
    /// The acquire was observed not to hold the lock.
    Absent(u16),
    /// The acquire was observed to hold the lock.
    Present(u16),
    /// An acquire in this mode was refused as busy.
    Busy(Mode),
    /// All holders were read, each with its token and session.
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

    fn seat_at(&self, seat: u16) -> &Seat {
        &self.seats[usize::from(seat)]
    }

    fn fits(&self, state: &LockState, mode: Mode) -> bool {
        let mut held = state.holders.iter().map(|seat| self.seat_at(*seat).mode);
        match mode {
            Mode::Exclusive => state.holders.is_empty(),
            Mode::Shared => held.all(|mode| mode == Mode::Shared),
            Mode::Permits(size) => held.all(|held| held == mode) && state.holders.len() < size as usize,
        }
    }

    /// Compares holders with a read: by token if it is known, otherwise by session.
    fn shows(&self, state: &LockState, view: &[(u64, u16)]) -> bool {
        let mut unknown: Vec<_> = view.to_vec();
        let (told, untold): (Vec<&Seat>, Vec<&Seat>) =
            state.holders.iter().map(|seat| self.seat_at(*seat)).partition(|seat| seat.token.is_some());

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

/// The index as a number of a seat. The number of checked operations limits that of seats.
fn number(at: usize) -> u16 {
    u16::try_from(at).unwrap_or(u16::MAX)
}

impl Model for LockModel {
    type Step = LockStep;
    type State = LockState;

    fn apply(&self, state: &LockState, step: &LockStep) -> Option<LockState> {
        match step {
            LockStep::Take(seat) => {
                let Seat { mode, token, .. } = self.seat_at(*seat);
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
            LockStep::Leave(seat) => {
                let at = state.holders.iter().position(|holder| holder == seat)?;
                let mut after = state.clone();
                after.holders.remove(at);
                Some(after)
            }
            LockStep::LeaveAll(session) => {
                let mut after = state.clone();
                after.holders.retain(|seat| self.seat_at(*seat).session != *session);
                Some(after)
            }
            LockStep::Absent(seat) => (!state.holders.contains(seat)).then(|| state.clone()),
            LockStep::Present(seat) => state.holders.contains(seat).then(|| state.clone()),
            LockStep::Busy(mode) => (!self.fits(state, *mode)).then(|| state.clone()),
            LockStep::View(view) => self.shows(state, view).then(|| state.clone()),
        }
    }

    fn reads(step: &LockStep) -> bool {
        match step {
            LockStep::Take(_) | LockStep::Leave(_) | LockStep::LeaveAll(_) => false,
            LockStep::Absent(_) | LockStep::Present(_) | LockStep::Busy(_) | LockStep::View(_) => true,
        }
    }

    /// Ranks grants by their tokens, because they happen in that order.
    fn rank(&self, step: &LockStep) -> Option<u64> {
        if let LockStep::Take(seat) = step { self.seat_at(*seat).token } else { None }
    }
}
