//! Linearizable reads: when this node's table may answer.
//!
//! A leader that was replaced does not know it at once, so it asks a quorum before it answers from its table. [`read_index`] is the rule
//! (the read index of Raft, §6.4 of Ongaro's thesis); `read_rounds` lets one round of questions serve all reads that came before it began.
//!
//! Absent on purpose: reads under a lease, which would rely on clocks, and reads at followers, which pass on to the leader.

pub mod read_index;
pub(crate) mod read_rounds;
