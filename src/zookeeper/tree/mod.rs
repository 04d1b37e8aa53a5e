//! Nodes: their names, their values in the store, and who may do what with them.

mod access;
mod mode;
mod node;
mod path;
mod value;

pub(crate) use access::ClientIdentities;
pub(crate) use mode::{CreateMode, NodeLife};
pub(crate) use node::{PENDING, PlannedStat, Znode, look_up, look_up_stat, look_up_stored, stored_key};
pub(crate) use path::{ALL_FROM, ALL_TO, ZnodePath, split_numbered};
pub(crate) use value::ZnodeValue;
