//! The lock service: sessions, holders, queues. Kept simple, and written independently of the real one.

use std::collections::BTreeMap;

use lockkeeper::chaos::history::{Holder, Mode, View, Waiter};

/// A session's number.
pub(super) type Who = usize;

#[derive(Clone, Debug)]
pub(super) struct Want {
    pub(super) session: Who,
    pub(super) request: u64,
    pub(super) locks: Vec<(String, Mode)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Granted(u64),
    Queued,
    Busy,
}

/// The whole state of the service.
#[derive(Default)]
pub(super) struct Table {
    pub(super) last_token: u64,
    /// By token.
    pub(super) held: BTreeMap<u64, Want>,
    /// In the order of arrival.
    pub(super) queue: BTreeMap<u64, Want>,
    last_ticket: u64,
}

impl Table {
    fn can_have(&self, ticket: Option<u64>, want: &Want) -> bool {
        let ahead = |lock: &str| {
            let before = |other: &u64| ticket.is_none_or(|ticket| *other < ticket);
            self.queue.iter().any(|(other, wait)| before(other) && wait.locks.iter().any(|(name, _)| name == lock))
        };
        want.locks.iter().all(|(lock, mode)| {
            let mut modes = self.holders(lock).map(|(_, _, mode)| mode);
            let free = match mode {
                Mode::Exclusive => modes.next().is_none(),
                Mode::Shared => modes.all(|other| other == Mode::Shared),
                Mode::Permits(size) => modes.count() < *size as usize,
            };
            free && !ahead(lock)
        })
    }

    fn holders<'t>(&'t self, lock: &'t str) -> impl Iterator<Item = (u64, Who, Mode)> + 't {
        self.held.iter().flat_map(move |(token, want)| {
            let of_lock = want.locks.iter().filter(move |(name, _)| name == lock);
            of_lock.map(move |(_, mode)| (*token, want.session, *mode))
        })
    }

    fn grant(&mut self, want: Want) -> u64 {
        self.last_token += 1;
        self.held.insert(self.last_token, want);
        self.last_token
    }

    pub(super) fn acquire(&mut self, want: Want, waits: bool) -> Reply {
        match (self.can_have(None, &want), waits) {
            (true, _) => Reply::Granted(self.grant(want)),
            (false, false) => Reply::Busy,
            (false, true) => {
                self.last_ticket += 1;
                self.queue.insert(self.last_ticket, want);
                Reply::Queued
            }
        }
    }

    pub(super) fn release(&mut self, token: u64) -> bool {
        self.held.remove(&token).is_some()
    }

    /// The token of the grant that this request holds.
    pub(super) fn token_of(&self, session: Who, request: u64) -> Option<u64> {
        let theirs = |want: &Want| want.session == session && want.request == request;
        self.held.iter().find(|(_, want)| theirs(want)).map(|(token, _)| *token)
    }

    /// Removes this request from the queue. Returns whether it waited.
    pub(super) fn leave_queue(&mut self, session: Who, request: u64) -> bool {
        let before = self.queue.len();
        self.queue.retain(|_, want| want.session != session || want.request != request);
        before != self.queue.len()
    }

    pub(super) fn end(&mut self, session: Who) {
        self.held.retain(|_, want| want.session != session);
        self.queue.retain(|_, want| want.session != session);
    }

    /// Grants the waiters that can be granted, in order.
    pub(super) fn serve(&mut self) -> Vec<(Want, u64)> {
        let mut served = Vec::new();
        while let Some(ticket) =
            self.queue.iter().find(|(ticket, want)| self.can_have(Some(**ticket), want)).map(|(ticket, _)| *ticket)
        {
            let want = self.queue.remove(&ticket).expect("it was found there");
            let token = self.grant(want.clone());
            served.push((want, token));
        }
        served
    }

    pub(super) fn view(&self, lock: &str, name: impl Fn(Who) -> String) -> View {
        let holders = self.holders(lock);
        let waits = self.queue.iter().filter(|(_, want)| want.locks.iter().any(|(name, _)| name == lock));
        View {
            holders: holders.map(|(token, who, mode)| Holder { token, session: name(who), mode }).collect(),
            waiters: waits
                .map(|(ticket, want)| Waiter { session: name(want.session), ticket: Some(*ticket) })
                .collect(),
            delayed: false,
            last_token: Some(self.last_token),
        }
    }
}
