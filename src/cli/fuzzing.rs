//! Values of arguments, for `tests/fuzz`. Not an interface: it changes with the arguments.

use std::fmt::Debug;

use super::{arguments, session::addresses::addresses, snapshot::founding};
use crate::{bench::Rate, chaos::nemesis::Faults};

/// Reads a value: shown as it was understood, or what is wrong with it.
pub type Read = fn(&str) -> Result<String, String>;

/// The kinds of values.
pub const VALUES: &[Read] = &[
    |text| shown(arguments::duration(text)),
    |text| shown(arguments::token(text)),
    |text| shown(arguments::ticket(text)),
    |text| shown(addresses(text)),
    |text| shown(founding::member(text)),
    |text| shown(founding::cluster_id(text)),
    |text| shown(text.parse::<Rate>()),
    |text| shown(text.parse::<Faults>()),
];

fn shown<T: Debug>(read: Result<T, String>) -> Result<String, String> {
    read.map(|value| format!("{value:?}"))
}
