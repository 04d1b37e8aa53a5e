//! Who may do what: the rules of a policy file, the limits of each identity, and the tokens by which a client shows its identity.
//!
//! Everything here is a pure function of the text of two files. A node asks [`Policy::decide`] before it executes a
//! request, and `lockkeeper policy explain` asks the same function. Without a policy, everything is allowed. With one,
//! everything is refused that no rule allows.
//!
//! ```
//! use lockkeeper_policy::{Policy, Right, What};
//! use lockkeeper_types::Identity;
//!
//! let policy = Policy::parse("[[rule]]\nwho = [\"shop-*\"]\nmay = [\"acquire\"]\nprefix = \"seats/\"")?;
//! let shop = Identity::new("shop-1").expect("valid");
//! assert!(policy.decide(Some(&shop), Right::Acquire, What::Name("seats/12")).is_ok());
//! let refused = policy.decide(Some(&shop), Right::Acquire, What::Name("orders/7")).unwrap_err();
//! assert!(refused.to_string().starts_with("shop-1 may not acquire \"orders/7\""));
//! # Ok::<(), lockkeeper_policy::FileError>(())
//! ```
//!
//! Three things are left out on purpose: rules that forbid (their order would matter, and a reader would have to know
//! all of them to understand one), groups (a pattern or several names in one rule serve the same end), and conditions of
//! time or address.

mod file;
mod limits;
mod rules;
#[cfg(test)]
mod tests;
mod tokens;

pub use file::{FILE_BYTES_MAX, PolicyFileError};
pub use limits::IdentityLimits;
pub use rules::{Denied, Policy, RequestSubject, Right, Rule};
pub use tokens::{BearerToken, TOKEN_PREFIX, TokenHash, Tokens};
