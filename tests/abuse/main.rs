//! What no client may do to another: careless and hostile clients against real clusters.
//!
//! Three server processes serve a bystander: a session that holds a lock, and pairs of acquire and release, one after the other. Then
//! somebody misbehaves. The bystander's pairs go on to be answered, its session and its lock are there afterwards, no election took place,
//! memory is back where it was (give or take [`MEMORY_SLACK_MIB`]), descriptors are within their limit, and the abuser was told why it was
//! stopped. What is measured on the way is printed (`--nocapture`); only what has no deadline of its own to miss is asserted, so that
//! a busy machine fails no test.
//!
//! A case is a function of a few lines: [`Stage::open`], then [`Stage::survives`] with what the abuser does. By subject:
//! * `resets`: calls that are opened and given up at once;
//! * `calls`: calls without a message, and streams that are opened and left;
//! * `arrivals`: connections that say nothing, or half a preface, until places or descriptors are short, at both ports;
//! * `messages`: many small requests on one stream;
//! * `readers`: answers that nobody reads, of each kind of call;
//! * `bulk`: one request that causes much work: sessions with many locks end, many sessions expire, many waiters are granted.
//!
//! `frames` speaks HTTP/2 by hand: no library sends such things. Sizes fit a debug build and a minute and a half; with
//! `LOCKKEEPER_ABUSE_FULL=1` they are those of the attacks that once brought nodes down. The tests take turns: each wants the machine.
//!
//! `LOCKKEEPER_ABUSE_PROGRAM=FILE` runs nodes of another build, such as a release build. `LOCKKEEPER_ABUSE_USUAL_TIMING=1` leaves the election
//! timeout at its default; without it, the timeout is three times as long, since debug builds share few processors.
//!
//! [`MEMORY_SLACK_MIB`]: stage::MEMORY_SLACK_MIB
//! [`Stage::open`]: stage::Stage::open
//! [`Stage::survives`]: stage::Stage::survives

mod arrivals;
mod bulk;
mod calls;
mod floods;
mod frames;
mod messages;
mod readers;
mod resets;
mod stage;
#[path = "../cluster/support.rs"]
mod support;

/// The size of an attack: `full`, or one that a debug build takes in its stride.
fn sized(small: usize, full: usize) -> usize {
    if std::env::var_os("LOCKKEEPER_ABUSE_FULL").is_some() { full } else { small }
}
