//! The applied table: committed entries of the log go in, replies, events and audit lines come out.
//!
//! [`Table`] is a node's copy of the machine, with all that listens to it. It knows of a log only that entries come in order, each once;
//! how they are agreed on is the matter of the crate above.
//!
//! * [`EntryContent`] and [`Table::apply_entry`]: one entry, decoded and applied; [`unapplied`] is about one that cannot be;
//! * [`Applied`]: the state, as a snapshot has it; [`AppliedMembership`]: the members in it; [`AppliedVersion`]: its cluster version;
//! * [`Deliveries`] and [`calls`]: what the proposer of an entry gets, and the calls that wait for a later one;
//! * [`listeners`]: the streams that are told of a lost session; [`change_history`] and [`watch_index`]: the changes for watchers, and the
//!   watches that an event concerns; `checkpoint` keeps a copy of the table at one entry;
//! * [`trail`]: the lines of the audit trail, made from what an entry did;
//! * [`codec`] and [`messages`]: commands and records as bytes.
//!
//! Absent on purpose: openraft, the log, files, the network and the clock of the leader. So a test drives a table with a few lines, and a
//! tool reads a snapshot without starting a node.

mod applied;
pub mod calls;
pub mod change_history;
mod checkpoint;
pub mod codec;
mod entries;
mod entry_id;
mod incarnation;
pub mod listeners;
mod members;
pub mod messages;
mod replies;
mod table;
pub mod trail;
pub mod unapplied;
mod version;
pub mod watch_index;

pub use applied::{Applied, Inspect, TableSummary};
pub use codec::Malformed;
pub use entries::EntryContent;
pub use entry_id::EntryId;
pub use incarnation::{Incarnation, InvalidIncarnation};
pub use members::{AppliedMembership, MemberNode};
pub use replies::{Deliveries, Delivery, Times};
pub use table::{Batch, Table};
pub use trail::{Audit, Trail};
pub use version::AppliedVersion;
