//! The table's parts. The fields of each part are private to its file, and its methods keep the invariants that the file names.
//!
//! The rules lie beside this folder, as methods of [`Machine`](super::Machine). They read the parts freely and change them only through
//! these methods, so an index, a counter or a sum cannot be forgotten: who looks for everything that may change one finds it in one file.
//!
//! | part | holds | keeps in line |
//! |---|---|---|
//! | [`TableClock`] | cluster time, deadlines | the moment that effects count from |
//! | [`IssuedNumbers`] | the last token and the last ticket | no number is issued twice |
//! | [`SessionTable`] | sessions, and how the last ones ended | the sums of the ledger |
//! | [`LockTable`] | locks in use | no idle lock stays, the sum of their bytes |
//! | [`GrantTable`] | grants that are held, revoked or taken | |
//! | [`WaitTable`] | acquires that wait | the index by session |
//! | [`EntryTable`] | the entries of the keyspace | the index by lease, the bytes of entries without one |
//! | [`ClaimTable`] | the locks that entries claim | their queues and counts |
//! | [`EntryHistory`] | the latest events of the keyspace | the index by key, the sum of their bytes |
//! | [`Backlog`] | work that is due | each piece is in it once |
//! | [`BatchBudget`] | limits of the present batch | |
//!
//! What several parts must agree on is the rules' matter, and checked by [`Machine::check`](super::Machine::check): a deadline of the
//! clock and its session, a holder of a lock and its grant.

mod backlog;
mod batch;
mod capacity;
mod claims;
mod clock;
mod compact_sets;
mod entries;
mod grants;
mod history;
mod key_index;
mod ledger;
mod locks;
mod numbers;
mod replies;
mod session;
mod sessions;
mod waits;
mod weights;

pub use backlog::Work;
pub(crate) use backlog::{Backlog, BacklogKey};
pub(crate) use batch::BatchBudget;
pub use capacity::TableCapacity;
pub(crate) use claims::{ClaimPlace, ClaimTable};
pub(crate) use clock::{Due, TableClock};
pub(crate) use compact_sets::GrantNames;
pub(crate) use entries::EntryTable;
pub(crate) use grants::{GrantTable, HeldGrant, RevokedGrant};
pub use history::EntryHistory;
pub(crate) use history::as_written;
pub(crate) use ledger::Temporaries;
pub use ledger::Usage;
pub(crate) use locks::{ActiveLock, LockTable};
pub(crate) use numbers::IssuedNumbers;
pub use replies::RememberedRequest;
pub(crate) use replies::{RememberedReply, remembered_acquire_bytes, remembered_update_bytes};
pub(crate) use session::{ClaimCount, SessionEnding, SessionState};
pub(crate) use sessions::SessionTable;
pub(crate) use waits::{WaitTable, WaitingAcquire};
pub(crate) use weights::{Charge, Weight, acquire_bytes_max, data_bytes, new_session_bytes};
