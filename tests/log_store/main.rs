//! The log on disk: what is acknowledged is there after a restart, and a log that is not what it was is refused.

mod crash;
mod damage;
mod machine;
mod owner;
mod reopening;
mod suite;
mod support;
