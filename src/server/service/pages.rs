//! Locks in pages, for lists and for the state at the start of a watch.
//!
//! The limit of a page counts encoded bytes, so the locks of a page are built as messages: they are encoded once, whatever the protocol.

use prost::Message;

use crate::wire::views;
use lockkeeper_machine::{LockName, Machine, Page, Ticket, Token};
use lockkeeper_proto::v1;

/// The holders and waiters that a list shows of each lock.
const LISTED: Page = Page { size: 16, holders_after: Token(0), waiters_after: Ticket(0) };

/// The limits of a page. The lock that reaches one of them closes it, so a page has at least one lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageLimit {
    /// Number of locks.
    pub(super) locks: usize,
    /// Encoded size of the locks.
    pub(super) bytes: usize,
}

/// Returns the locks under a prefix, after a name if one is given, and the name after which the next page begins. That name is empty if
/// this is the last page.
pub(super) fn page_of_locks(
    machine: &Machine,
    prefix: &str,
    after: Option<&LockName>,
    limit: PageLimit,
) -> (Vec<v1::LockInfo>, String) {
    let mut locks = Vec::new();
    let mut bytes = 0;
    let mut names = machine.locks(prefix, after);

    for name in names.by_ref() {
        let lock = views::show_lock(machine.lock(name, LISTED));
        bytes += lock.encoded_len();
        locks.push(lock);
        if locks.len() == limit.locks || bytes >= limit.bytes {
            break;
        }
    }

    let next = match (names.next(), locks.last()) {
        (Some(_), Some(last)) => last.name.clone(),
        _ => String::new(),
    };
    (locks, next)
}
