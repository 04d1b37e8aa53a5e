//! The history of a run: JSON lines, in the style of Jepsen.
//!
//! One event per line, in the order of their times. Empty lines and lines that begin with `#` are skipped.
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
//! | `time_ns` | nanoseconds on *one* monotonic clock for the whole file. Never decreases |
//! | `process` | a client, a node, or `nemesis`, which injects the faults. A process that died is not reused under its name |
//! | `type` | `invoke` when an operation begins, recorded *before* it is sent; `ok` when it took effect, `fail` when it had no effect,
//! `info` when its outcome is unknown: it may take effect at any later time, or never. If `f` is a fact and not an operation, also `info` |
//! | `f` | the operation or the fact: see below |
//! | `op` | the operation's number, for a process with concurrent operations. Without it, a process executes one at a time |
//! | `lock` | the lock's name, or a list of names for an acquire of several locks. Optional at the end of an operation |
//! | `value` | further fields, by `f`. Unknown fields are ignored, so that a history can carry more |
//!
//! # Operations
//!
//! | `f` | `value` of `invoke` | `value` of `ok` |
//! |---|---|---|
//! | `open` | `session`, `ttl_ms` | `ttl_ms` if the cluster chose another; `sent_ns`, if the answered attempt is known to be later than the invoke |
//! | `renew` | `session` | as `open` |
//! | `close` | `session`; by its holder, or by an operator for another | |
//! | `acquire` | `session`; `request`, its id; `mode`, which is `"exclusive"` (the default), `"shared"`, `{"permits":3}`, or a list, one for each lock; `wait`, which is `"none"` (the default), `"forever"` or `{"at_most_ms":50}`; `lock_delay_ms` | `token`; `place_lost`, true if the client was queued again meanwhile (the client library does so after a long loss of contact) |
//! | `retry` | `session`, `request`: a retry of the same acquire | `token` |
//! | `cancel` | `session`, `request` (or `op`: of the same process): the acquire is abandoned, whatever its state | `found`: `"grant"`, `"wait"` or `"nothing"` |
//! | `release` | `session`, `token` | |
//! | `update` | `session`, `token`; `data` | |
//! | `get` | | a linearizable view of the lock: `holders`, each with `token`, `session`, `mode`; `waiters` in queue order, each with `session`, `ticket`; `delayed`, true during a lock-delay; `last_token` |
//! | `check` | `token` | `held` |
//! | `force_release` | `token` (unset: all holders); `now`, true to not wait for the holder; `reason` | `revoked`, the tokens |
//! | `read` | of a register, whose name is in `lock` | `value`, a number; unset: it has none |
//! | `set` | of a register: `to`, if it has the value `from`; unset: none | |
//! | `txn` | registers are read and written at one moment: see [`Transaction`] and below | `revision`, `succeeded`, `results`: see [`TxnAnswer`] |
//! | `write` | to the resource that `lock` protects: `token`, `mode`; `fenced`, false if the resource accepts every token | accepted; `seq`, the resource's own count, if it has one |
//!
//! A `fail` has its reason in `value.reason`: `busy`, `timed_out`, `cancelled`, `not_held`, `session_expired`,
//! `session_unknown`, `session_closed`, `refused_token` (a write), `not_equal` (a set), `unavailable` (not executed: no leader, no node),
//! `place_lost` (as `timed_out`, but it was queued again meanwhile), or another word.
//!
//! # Transactions and watches
//!
//! ```text
//! … "type":"invoke","f":"txn","value":{"compares":[{"key":"a","target":"created","number":0}],
//!                                     "then":[{"put":{"key":"a","value":"x1"}},{"range":{"from":"a","to":"c"}}]}
//! … "type":"ok","f":"txn","value":{"revision":7,"results":[{"put":{}},{"ranged":{"registers":[["a",{"value":"x1","modified":7}]]}}]}
//! … "type":"info","f":"watching","value":{"watch":"w1","range":{"from":"a","to":"c"},"after":7}
//! … "type":"info","f":"watched","value":{"watch":"w1","revision":9,"changes":[{"key":"a"},{"key":"b","now":{"value":"x2"}}]}
//! ```
//!
//! * The steps of a transaction are `get`, `range`, `put`, `delete` and `delete_range`; their results are `got`, `ranged`, `put` and
//!   `deleted`. The keys and values are text. `at` reads the state at a revision, and `stale` accepts an earlier one.
//! * *Revisions* order all transactions that write; each of these has one of its own. A store without revisions leaves out all of them.
//!   Then no two puts of one register may have the same value, since values tell which put a read saw.
//! * `lease` names a session of the history (its `open` may be an operation of another protocol). A register ends with its session, at a
//!   revision of its own, unless `outlives_lease` is true.
//! * A watch has a name of its own; one that goes on after an interruption begins anew, under another name, after the last revision that it
//!   reported.
//!
//! # Facts
//!
//! | `f` | `value` | meaning |
//! |---|---|---|
//! | `meta` | see [`Meta`] | the first line: the format, and the bounds that the run promises |
//! | `renewed` | `session`, `sent_ns`, `ttl_ms` | a background renewal was acknowledged now; it was sent at `sent_ns` |
//! | `lost` | `session`, `why`, `token` | a holder noticed that its session, or one grant, is lost. `why` is `expired` or `unknown` (the cluster said so), `closed` (by somebody else: the holder does not notice its own close), `revoked`, `out_of_contact` (its own deadline passed) |
//! | `bystander` | `session` | its holder has a lock and only renews from here on; nothing stops it or revokes the lock |
//! | `died` | `process` | a client was killed: it executes and renews nothing from here on |
//! | `fault` | `name`; `nodes`, its targets; `silent`, pairs of nodes between which nothing passes in this direction, `[[1,2],[1,3]]` | a fault begins |
//! | `heal` | `name` | the fault is over. Without a name: all faults |
//! | `killed`, `started` | `node` | a node was killed; runs again |
//! | `stopped` | `node` | a node was stopped gracefully; `started` follows when it runs again |
//! | `joined`, `removed` | `node` | a node that was added is a voter; a node was removed from the cluster, and its process has ended |
//! | `transferred` | `node` | the leadership was handed over to this node on request |
//! | `elected` | `node`, `term` | a node became leader |
//! | `snapshot_installed` | `node`, `index` | a node installed a snapshot from its leader |
//! | `table` | `node`, `index`, `hash` | a node's table hash at an applied index |
//! | `speaks` | `process`, `protocol` | the sessions of this process are of a protocol, such as `etcd`; else they are of the store's own |
//! | `watching` | `watch`, `range` (with `from` and `to`), `after` (a revision) | a watch begins: it reports all later changes in the range |
//! | `watched` | `watch`, `revision`, `changes`: each with `key` and, unless it was deleted, `now` | a watch reported changes |
//! | `watch_progress` | `watch`, `revision` | a watch said that it has reported all changes up to this revision |
//! | `watch_ended` | `watch`, `why` | a watch is over |
//! | `refused_entry` | `node`, `index`, `why` | a node could not apply an entry, and ended or stopped for it |
//! | `longest_turn` | `node`, `runtime`, `us` | the longest time for which a task of a runtime kept the others waiting, up to now |
//! | `longest_apply` | `node`, `us` | the longest time that a node took to apply one group of entries, up to now |
//! | `restored` | | all nodes were lost with their data, and a new cluster was made from a backup; its nodes start after this |
//! | `end` | | the last line of a complete run: all processes were asked to finish and had time to do so |
//!
//! The final state of a run is read by `get`s between the last `heal` and `end`. Unknown facts are kept and ignored.
//!
//! Deliberately absent: internal state of nodes. A history holds what can be observed from outside, and the few facts
//! that a node publishes; otherwise the check would trust a faulty node.

mod event;
mod line;
mod operations;
mod read_error;
mod reader;
mod transactions;
mod values;
mod writer;

pub use self::{
    event::{Answer, Call, Event, Fact, Function, Lease, What},
    operations::{Ended, Operation, operations},
    read_error::ReadError,
    transactions::{
        CompareRelation, CompareTarget, SeenRange, SeenRegister, StepResult, Transaction, TxnAnswer, TxnCompare,
        TxnPut, TxnRange, TxnStep, WatchedChange,
    },
    values::{Acquire, CancelFound, Holder, Meta, Mode, Modes, Session, View, Wait, Waiter},
    writer::Writer,
};

/// A whole history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The events, each with the number of its line: the first line of a file is 1.
    pub events: Vec<(usize, Event)>,
}
