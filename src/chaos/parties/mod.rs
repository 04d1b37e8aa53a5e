//! The parties of a run: client processes, programs of the user's own, the observer of the nodes, the operator, which reads and revokes
//! locks, and a bystander, which keeps one.
//!
//! [`run`](mod@super::run) starts them, and [`nemesis`](super::nemesis) stops and kills some of them: both use this module, and it uses
//! neither.

pub(super) mod bystander;
pub(super) mod clients;
pub(super) mod observe;
pub(super) mod operator;
pub(super) mod programs;

use std::time::Duration;

/// The promised bounds. They are generous, because they are to detect lost requests rather than slow ones.
pub(super) const EXPIRY_BOUND_MS: u64 = 8_000;
pub(super) const HANDOVER_BOUND_MS: u64 = 8_000;
pub(super) const LIVENESS_BOUND_MS: u64 = 20_000;
pub(super) const LIVENESS_BOUND: Duration = Duration::from_millis(LIVENESS_BOUND_MS);
