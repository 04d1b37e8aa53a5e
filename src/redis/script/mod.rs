//! Scripts: what runs them is a parameter, and how it meets the keyspace is decided here.
//!
//! **A run is a pure function of what it reads.** It is synchronous, and touches the keyspace only by [`ScriptHost::call`]. The host
//! answers from the entries that are loaded. If a command needs an entry that is not loaded, the host notes the key, answers
//! [`CallAborted`], and the whole run is over: its writes were buffered and are dropped. The caller then loads the noted keys, at one
//! revision with those that were loaded before, and begins the run again. So no thread waits for the network while it holds an interpreter,
//! and a conflict at the commit is the same thing: load again, run again.
//!
//! Therefore two runs over the same entries must make the same calls: no clock but the command TIME, which the host answers with the same
//! time in each run, and no random number but those of a generator that begins with the same seed in each run.
//!
//! The keys that a script declares are loaded before its first run, so the common script runs once.

mod cache;
mod host;
mod interpreter;
mod shape;

pub(crate) use cache::{CachedScript, ScriptCache};
pub(crate) use host::ViewHost;
pub use interpreter::{CallAborted, Interpreter, ScriptFailure, ScriptHost, ScriptLimits};
pub(crate) use shape::{ScriptShape, ThenDo, ValueComparison};
