//! The keys of the store's entries for tables and items.
//!
//! | key | holds |
//! |---|---|
//! | `dynamodb/table/NAME` | a table; also one that was deleted, until its items are removed |
//! | `dynamodb/item/NAME/CREATED/` partition [sort] | an item |
//! | `dynamodb/dropped/NAME/CREATED` | nothing: the items of this deleted table are to be removed |
//! | `dynamodb/once/` hash | the answer to a request that may be sent again |
//!
//! The order of keys is DynamoDB's order of items within a partition. A number becomes [`Number::ordered_bytes`]; texts and bytes stay as
//! they are at the end of a key. Before a sort key they are terminated: 0 becomes `00 ff`, and the end is `00 01`, so that no partition is
//! the prefix of another. A name has no `/`. CREATED is the revision of the table's creation: items that a deleted table left behind do not
//! belong to a new table of the same name.

use crate::{AttributeValue, Number};

const TABLE: &str = "dynamodb/table/";
const ITEM: &str = "dynamodb/item/";
/// The first part of the keys of deleted tables.
pub(crate) const DROPPED: &str = "dynamodb/dropped/";
const ONCE: &str = "dynamodb/once/";

/// Returns the key of a table.
pub(crate) fn table_key(name: &str) -> Vec<u8> {
    format!("{TABLE}{name}").into_bytes()
}

/// The first part of the keys of tables.
pub(crate) const TABLES: &str = TABLE;

/// Returns the name of the table that a key belongs to.
pub(crate) fn table_name(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(TABLE.as_bytes())?).ok()
}

/// Returns the key that marks a table as deleted.
pub(crate) fn dropped_table_key(name: &str, created: u64) -> Vec<u8> {
    format!("{DROPPED}{name}/{created}").into_bytes()
}

/// Returns the name of a deleted table, and the revision of its creation.
pub(crate) fn dropped_table(dropped: &[u8]) -> Option<(&str, u64)> {
    let (name, created) = std::str::from_utf8(dropped.strip_prefix(DROPPED.as_bytes())?).ok()?.split_once('/')?;
    Some((name, created.parse().ok()?))
}

/// Returns the key of the answer to a request.
pub(crate) fn answer_key(mark: &[u8]) -> Vec<u8> {
    let hex: String = mark.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{ONCE}{hex}").into_bytes()
}

/// Returns the first part of the keys of all items of a table.
pub(crate) fn items_prefix(table: &str, created: u64) -> Vec<u8> {
    format!("{ITEM}{table}/{created}/").into_bytes()
}

/// Returns the first part of the keys of a partition, in a table with a sort key.
pub(crate) fn partition_prefix(items: &[u8], partition: &AttributeValue) -> Vec<u8> {
    let mut key = items.to_vec();
    if let AttributeValue::N(number) = partition {
        key.extend(number.ordered_bytes());
        return key;
    }

    for byte in raw(partition) {
        key.push(*byte);
        if *byte == 0 {
            key.push(0xff);
        }
    }

    key.extend([0, 1]);
    key
}

/// Returns the end of a key, for its last value.
pub(crate) fn last_part(value: &AttributeValue) -> Vec<u8> {
    if let AttributeValue::N(number) = value { Number::ordered_bytes(*number) } else { raw(value).to_vec() }
}

/// Returns the key of an item.
pub(crate) fn item_key(items: &[u8], partition: &AttributeValue, sort: Option<&AttributeValue>) -> Vec<u8> {
    match sort {
        None => [items, &last_part(partition)].concat(),
        Some(sort) => [partition_prefix(items, partition), last_part(sort)].concat(),
    }
}

/// Returns the first key after all keys with this prefix, if there is one.
pub(crate) fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut key = prefix[..=kept].to_vec();
    key[kept] += 1;
    Some(key)
}

fn raw(value: &AttributeValue) -> &[u8] {
    match value {
        AttributeValue::S(text) => text.as_bytes(),
        AttributeValue::B(bytes) => bytes,
        AttributeValue::N(_)
        | AttributeValue::Bool(_)
        | AttributeValue::Null
        | AttributeValue::Ss(_)
        | AttributeValue::Ns(_)
        | AttributeValue::Bs(_) => &[],
        AttributeValue::L(_) | AttributeValue::M(_) => &[],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_part() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(0xff), any::<u8>()], 0..5)
    }

    proptest! {
        #[test]
        fn keys_have_the_order_of_the_parts(a in any_part(), b in any_part(), c in any_part(), d in any_part()) {
            let items = items_prefix("table", 1);
            let key = |partition: &Vec<u8>, sort: &Vec<u8>| {
                item_key(&items, &AttributeValue::B(partition.clone()), Some(&AttributeValue::B(sort.clone())))
            };
            prop_assert_eq!(key(&a, &b).cmp(&key(&c, &d)), (&a, &b).cmp(&(&c, &d)));
            let partition = partition_prefix(&items, &AttributeValue::B(a.clone()));
            prop_assert_eq!(key(&c, &d).starts_with(&partition), a == c);
        }

        #[test]
        fn nothing_lies_between_a_prefix_and_what_is_after_it(prefix in any_part(), key in any_part()) {
            let Some(after) = after(&prefix) else { return Ok(()) };
            prop_assert_eq!(key >= prefix && key < after, key.starts_with(&prefix));
        }
    }

    #[test]
    fn a_lock_without_a_sort_key_is_readable() {
        assert_eq!(
            item_key(&items_prefix("locks", 7), &AttributeValue::S("jobs".into()), None),
            b"dynamodb/item/locks/7/jobs"
        );
        assert_eq!(table_name(&table_key("locks")), Some("locks"));
        assert_eq!(after(b"\xff\xff"), None);
    }
}
