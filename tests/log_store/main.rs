//! The log on disk: acknowledged entries survive a restart, and a damaged or older log is refused.

mod crash;
mod damage;
mod machine;
mod owner;
mod reopening;
mod suite;
mod support;
