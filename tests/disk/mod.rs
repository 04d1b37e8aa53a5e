//! Disks that fill up: the reserve, really full disks, and the bound of a node's disk space.
//!
//! By module:
//! * `short`: below the reserve the cluster refuses what adds, and says so; one short disk of three refuses nothing;
//! * `writing`: renewals and releases by clients that lock by writing go on below the reserve;
//! * `full`: a disk without a free byte ends its node with a clear message; what was acknowledged is there once space is freed;
//! * `file_size`: a limit of the size of files ends its node with a clear message, too;
//! * `bound`: under load a node stays within the bound that `cluster-configs/day-2.md` states; restarts remove leftovers;
//! * `growth`: measures sled's files over many entries; run it by hand.
//!
//! The first three need small disks: `mounts` runs a test again in a mount namespace of its own, with file systems in memory. Where that is
//! not permitted, they are skipped, and say so.

#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, reason = "real processes run in real time; figures are for people to read")]

mod bound;
mod file_size;
mod full;
mod growth;
mod mounts;
mod short;
mod writing;
