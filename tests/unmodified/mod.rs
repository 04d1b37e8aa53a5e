//! Programs of others, as they are: installed once into the build directory, in versions that do not change, run, and judged.
//!
//! A module of the tests of DynamoDB's clients (`tests/dynamodb`) and of etcd's (`tests/etcd`). `packages` alone is one of the
//! endpoint's own tests, too (`src/dynamodb/tests`).

pub(crate) mod debian;
pub(crate) mod judged;
pub(crate) mod npm;
pub(crate) mod packages;
pub(crate) mod program;
