//! The names under which people see items that are locks: `dynamodb/TABLE/KEY`, and `dynamodb/TABLE/PARTITION/SORT` in a table with a sort
//! key.
//!
//! Two items of a table never have the same name, and a name never changes: the audit and operators tell locks apart by it.
//!
//! * Printable text stays as it is. A `%`, a control character, each byte of a key that is not UTF-8, and a `/` in the partition of a table
//!   with a sort key become `%` and two hexadecimal digits for each byte. A number is written as DynamoDB shows it.
//! * A name of more than [`NAME_BYTES_MAX`] bytes is cut, and ends with `%#` and the first half of the SHA-256 of the whole name, in
//!   hexadecimal. No other name has a `%#` in it.

use lockkeeper_names::{NAME_BYTES_MAX, append_escaped, end_with_hash};
use sha2::{Digest as _, Sha256};

use crate::AttributeValue;

/// Returns the name of the item with this key.
pub(crate) fn lock_name(table: &str, partition: &AttributeValue, sort: Option<&AttributeValue>) -> String {
    let mut name = format!("dynamodb/{table}/");
    append(&mut name, partition, sort.is_some());
    if let Some(sort) = sort {
        name.push('/');
        append(&mut name, sort, false);
    }

    if name.len() > NAME_BYTES_MAX {
        let hash = Sha256::digest(&name);
        end_with_hash(&mut name, &hash);
    }
    name
}

fn append(name: &mut String, part: &AttributeValue, escapes_slash: bool) {
    let bytes: &[u8] = match part {
        AttributeValue::S(text) => text.as_bytes(),
        AttributeValue::B(bytes) => bytes,
        AttributeValue::N(number) => return name.push_str(&number.to_string()),
        // Keys do not have these types.
        AttributeValue::Bool(_)
        | AttributeValue::Null
        | AttributeValue::L(_)
        | AttributeValue::M(_)
        | AttributeValue::Ss(_)
        | AttributeValue::Ns(_)
        | AttributeValue::Bs(_) => return,
    };

    append_escaped(name, bytes, |character| escapes_slash && character == '/');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> AttributeValue {
        AttributeValue::S(text.to_owned())
    }

    #[test]
    fn names_are_readable_and_valid() {
        assert_eq!(lock_name("locks", &text("orders/42 é"), None), "dynamodb/locks/orders/42 é");
        assert_eq!(lock_name("locks", &text("a/b"), Some(&text("c/d"))), "dynamodb/locks/a%2fb/c/d");
        assert_eq!(lock_name("locks", &text("100%\0\n"), None), "dynamodb/locks/100%25%00%0a");
        assert_eq!(lock_name("locks", &AttributeValue::B(vec![b'a', 0xff]), None), "dynamodb/locks/a%ff");
        assert_eq!(
            lock_name("locks", &AttributeValue::N("-1.50".parse().unwrap()), Some(&text(""))),
            "dynamodb/locks/-1.5/"
        );
        let long = lock_name("locks", &text(&"é".repeat(1024)), None);
        assert!(long.len() <= NAME_BYTES_MAX && long.contains("é%#"), "{long}");
        assert_ne!(long, lock_name("locks", &text(&"é".repeat(1023)), None));
    }

    proptest! {
        #[test]
        fn no_two_items_have_one_name(keys in proptest::collection::btree_set(("[/%#a\0é]{0,3}", "[/%#a\0é]{0,3}"), 2..20)) {
            let with_sort = |(partition, sort): &(String, String)| lock_name("t", &text(partition), Some(&text(sort)));
            prop_assert_eq!(keys.iter().map(with_sort).collect::<BTreeSet<_>>().len(), keys.len());
            let partitions: BTreeSet<_> = keys.iter().map(|(partition, _)| partition).collect();
            let names: BTreeSet<_> = partitions.iter().map(|partition| lock_name("t", &text(partition), None)).collect();
            prop_assert_eq!(names.len(), partitions.len());
        }
    }
}
