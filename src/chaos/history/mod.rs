//! The history of a run: JSON lines, in the manner of Jepsen's.
//!
//! One event a line, in the order of their times. Empty lines and lines that begin with `#` are skipped.
//!
//! ```text
//! {"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1,"handover_bound_ms":500}}
//! {"time_ns":5,"process":"ann","type":"invoke","f":"open","value":{"session":"s1","ttl_ms":1000}}
//! {"time_ns":9,"process":"ann","type":"ok","f":"open"}
//! {"time_ns":11,"process":"ann","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"s1","request":1}}
//! {"time_ns":15,"process":"ann","type":"ok","f":"acquire","value":{"token":1}}
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `time_ns` | nanoseconds on *one* monotonic clock for the whole file. Never falls from one line to the next |
//! | `process` | who: a client, a node, or `nemesis`, who does the faults. Does not come back under its name once it died |
//! | `type` | `invoke`: an operation begins, written down *before* it is sent. `ok`: it did what it says. `fail`: it certainly did not. `info`: its outcome is not known, it may take effect at any later time, or never; or, where `f` is no operation, a fact |
//! | `f` | the operation or the fact: see below |
//! | `op` | the operation's number, for a process that does several at once. Without it, a process does one at a time |
//! | `lock` | the lock's name, or a list of names for an acquire of several at once. May be left out at the end of an operation |
//! | `value` | the rest, by `f`. Fields that are not known here are skipped, so that a history can carry more |
//!
//! # Operations
//!
//! | `f` | `value` of `invoke` | `value` of `ok` |
//! |---|---|---|
//! | `open` | `session`, `ttl_ms` | `ttl_ms` if the cluster chose another; `sent_ns`, if the sending that was answered is known to be later than the invoke |
//! | `renew` | `session` | as `open` |
//! | `close` | `session` | |
//! | `acquire` | `session`; `request`: its id; `mode`: `"exclusive"` (the default), `"shared"`, `{"permits":3}`, or a list, one for each lock; `wait`: `"none"` (the default), `"forever"`, `{"at_most_ms":50}`; `lock_delay_ms` | `token`; `place_lost`: true if the client took a new place in the queue meanwhile (its own library does after a long loss of contact) |
//! | `retry` | `session`, `request`: the same acquire is sent again | `token` |
//! | `cancel` | `session`, `request` (or `op`: of the same process): the acquire is given up, whatever became of it | `found`: `"grant"`, `"wait"` or `"nothing"` |
//! | `release` | `session`, `token` | |
//! | `update` | `session`, `token`; `data` | |
//! | `get` | | a linearizable view of the lock: `holders`: each with `token`, `session`, `mode`; `waiters`, in the order of the queue: each with `session`, `ticket`; `delayed`: true while a lock-delay keeps it closed; `last_token` |
//! | `check` | `token` | `held` |
//! | `force_release` | `token` (left out: all holders); `now`: do not wait for the holder; `reason` | `revoked`: the tokens |
//! | `write` | to the resource that `lock` protects: `token`, `mode`; `fenced`: false if the resource takes every token | accepted. `seq`: the resource's own count, if it has one |
//!
//! A `fail` says why in `value.reason`: `busy`, `timed_out`, `cancelled`, `not_held`, `session_expired`, `session_unknown`,
//! `session_closed`, `refused_token` (a write), `unavailable` (nothing happened: no leader, no node), or a word of its own.
//!
//! # Facts
//!
//! | `f` | `value` | meaning |
//! |---|---|---|
//! | `meta` | see [`Meta`] | the first line: the format, and the bounds that the run promises to keep |
//! | `renewed` | `session`, `sent_ns`, `ttl_ms` | a renewal in the background was acknowledged now; it was sent at `sent_ns` |
//! | `lost` | `session`, `why`, `token` | a holder noticed that its session, or one grant, is lost. `why`: `expired` or `unknown` (the cluster said so), `closed`, `revoked`, `out_of_contact` (it counted itself) |
//! | `died` | `process` | a client was killed: it does nothing from here on, and renews nothing |
//! | `fault` | `name`; `nodes`: whom it hits; `silent`: from which node to which nothing passes, `[[1,2],[1,3]]` | a fault begins |
//! | `heal` | `name` | it is over. Without a name: all of them |
//! | `killed`, `started` | `node` | a node was killed; runs again |
//! | `elected` | `node`, `term` | a node became leader |
//! | `snapshot_installed` | `node`, `index` | a node took a snapshot from its leader |
//! | `table` | `node`, `index`, `hash` | a node's table hash at an applied index |
//! | `end` | | the last line of a run that was not cut off: all were asked to finish, and given the time to |
//!
//! What a run ends with is told by `get`s between the last `heal` and `end`. Facts that are not known here are kept and skipped.
//!
//! What is deliberately absent: what nodes thought. A history holds what could be observed from outside, and the few facts that a
//! node publishes; else a node in error would be believed.

mod event;
mod line;
mod operations;
mod reader;
mod words;
mod writer;

pub use self::{
    event::{Answer, Call, Event, Fact, Function, Lease, What},
    operations::{Ended, Operation, operations},
    reader::{History, ReadError},
    words::{Acquire, Found, Holder, Meta, Mode, Modes, Session, View, Wait, Waiter},
    writer::Writer,
};
