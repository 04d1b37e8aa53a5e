//! Who leads: how the end of a leader is noticed early, and how leadership passes to another voter.
//!
//! Raft's election timeout is the fallback, and always works. It has to be long, because a follower by itself cannot tell a dead leader
//! from a slow link, so what can be told sooner is told here:
//!
//! * [`fast_election`]: the leader's process was killed. Its connections break and its port refuses, which takes milliseconds to see;
//! * [`silent_leader`]: its machine vanished or froze. No connection breaks, so the voters compare how long they have heard nothing;
//! * [`handover`]: the leader is fine and gives the leadership to a voter that answers and has almost the whole log. An operator asks for
//!   it, and a node that ends asks itself;
//! * [`slow_disk`]: a leader whose disk has become slow hands over by itself;
//! * [`disk_watch`]: so does one whose disk runs full.
//!
//! Each of these decides when an election *begins*. Whether it is won is decided by Raft alone: a majority of votes, each from a voter
//! whose log is not longer. A wrong suspicion costs an election, and no promise.
//!
//! Absent on purpose: leases. No read and no grant relies on a leader's belief that it still leads ([`crate::reads`]), so an election may
//! begin at any time. Priorities of nodes are absent, too: any voter may lead.

pub mod disk_watch;
pub mod fast_election;
pub mod handover;
pub mod silent_leader;
pub mod slow_disk;
#[cfg(test)]
mod transcripts;
