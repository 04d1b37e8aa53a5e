//! Writes: planned against the state of this node, committed under the condition that what was read still holds.
//!
//! ```text
//! overlay     the state with the changes of the plan so far
//! plan        requests become a transaction, or the first of them fails
//! execute     commits plans until one is judged by the state that it was made for
//! pipeline    the same for requests that have arrived together
//! ```
//!
//! The number of a node's children is never compared. Whether a child exists, or a parent has children, the store decides while it commits;
//! so clients that queue below one node never make each other plan again. A failure that was found in this node's state is told only after
//! the store has confirmed it: this node may lag.

mod execute;
mod overlay;
mod pipeline;
mod plan;

pub(crate) use execute::{WriteContext, WriteOutcome, ensure_root, execute};
pub(crate) use pipeline::{TOGETHER_MAX, execute_each};
pub(crate) use plan::WriteResult;
