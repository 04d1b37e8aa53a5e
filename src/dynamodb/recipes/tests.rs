//! Tests of the recipes, with items as their clients write them.

use proptest::prelude::*;

use super::*;
use crate::tables::tests::lock_table;

const NAME: &str = "dynamodb/t/k";
const NOW_MS: u64 = 1_735_689_600_000;

fn item(json: &str) -> Item {
    serde_json::from_str(json).unwrap()
}

/// A version as UUIDs are written.
fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

fn java(version: u32, more: &str) -> Item {
    let version = uuid(version);
    item(&format!(
        r#"{{"key":{{"S":"k"}},"ownerName":{{"S":"ann"}},"recordVersionNumber":{{"S":"{version}"}},"leaseDuration":{{"S":"20000"}}{more}}}"#
    ))
}

fn python(more: &str) -> Item {
    let version = uuid(1);
    item(&format!(
        r#"{{"key":{{"S":"k"}},"owner_name":{{"S":"ann"}},"record_version_number":{{"S":"{version}"}},"lease_duration":{{"N":"30.5"}},"expiry_time":{{"N":"1735689600"}}{more}}}"#
    ))
}

fn hero(more: &str) -> Item {
    let version = uuid(1);
    item(&format!(
        r#"{{"key":{{"S":"k"}},"ownerName":{{"S":"ann"}},"recordVersionNumber":{{"S":"{version}"}},"leaseDurationInMs":{{"N":"900"}},"lastUpdatedTimeInMs":{{"N":"1735689600000"}},"additionalAttributes":{{"M":{{}}}}{more}}}"#
    ))
}

fn npm(more: &str) -> Item {
    let mut item = item(&format!(
        r#"{{"key":{{"S":"k"}},"owner":{{"S":"ann"}},"leaseDurationMs":{{"N":"700"}},"fencingToken":{{"N":"3"}}{more}}}"#
    ));
    item.insert("guid".to_owned(), AttributeValue::B(vec![7; 64]));
    item
}

fn with(mut item: Item, name: &str, value: AttributeValue) -> Item {
    item.insert(name.to_owned(), value);
    item
}

fn without(mut item: Item, name: &str) -> Item {
    item.remove(name);
    item
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn entry(modified: u64, expired: bool) -> DynamoEntry {
    DynamoEntry { created: 1, modified, version: 1, leased: !expired, expired, revoked: false, value: Vec::new() }
}

fn rules(table: &TableProperties) -> Rules<'_> {
    Rules { table, knows_locks: true, lease_ms_max: 86_400_000, wall_ms: NOW_MS }
}

fn grant(ttl_ms: u64, at_end: AtEnd) -> DynamoLease {
    DynamoLease::Granted { lock: Some(NAME.to_owned()), owner: "ann".to_owned(), ttl_ms, at_end }
}

fn put(before: Option<(&ItemRecord, &DynamoEntry)>, item: Item) -> (ItemRecord, DynamoLease) {
    write(before, item, true)
}

fn write(before: Option<(&ItemRecord, &DynamoEntry)>, mut item: Item, says_tenure: bool) -> (ItemRecord, DynamoLease) {
    let table = lock_table("t", &["key"]);
    let (fence, lease) = written(before, &mut item, rules(&table), says_tenure, || NAME.to_owned());
    (ItemRecord { item, fence, mark: None }, lease)
}

fn seen(record: &ItemRecord, entry: &DynamoEntry) -> Item {
    shown(record, entry, rules(&lock_table("t", &["key"])))
}

#[test]
fn a_lease_is_granted_renewed_kept_and_given_up() {
    let (held, lease) = put(None, java(1, ""));
    assert_eq!((held.fence, lease), (ItemFence::ThisRevision, grant(20_000, AtEnd::Expire)));
    let (renewed, lease) = put(Some((&held, &entry(7, false))), java(2, ""));
    assert_eq!((renewed.fence, lease), (ItemFence::At(7), DynamoLease::Renewed));
    let (edited, lease) = write(Some((&renewed, &entry(8, false))), java(2, r#","x":{"S":"y"}"#), false);
    assert_eq!(
        (edited.fence, lease),
        (ItemFence::At(7), DynamoLease::Kept),
        "a change of other attributes renews nothing"
    );
    let (released, lease) = put(Some((&edited, &entry(9, false))), java(2, r#","isReleased":{"S":"1"}"#));
    assert_eq!((released.fence, lease), (ItemFence::At(7), DynamoLease::None));
    let (again, lease) = put(Some((&released, &entry(10, false))), java(3, ""));
    assert_eq!((again.fence, lease), (ItemFence::ThisRevision, grant(20_000, AtEnd::Expire)));
}

#[test]
fn whoever_puts_a_lock_that_is_over_holds_it_also_by_the_same_words() {
    let over = entry(7, true);
    for (item, at_end, ttl_ms) in [
        (java(1, ""), AtEnd::Expire, 20_000),
        (npm(""), AtEnd::Expire, 700),
        (python(r#","note":{"S":"x"}"#), AtEnd::Expire, 30_500),
    ] {
        let (held, _) = put(None, item.clone());
        let (again, lease) = put(Some((&held, &over)), item.clone());
        assert_eq!((again.fence, lease), (ItemFence::ThisRevision, grant(ttl_ms, at_end)), "{item:?}");
        let revoked = DynamoEntry { revoked: true, ..entry(7, true) };
        assert_eq!(put(Some((&held, &revoked)), item.clone()).1, grant(ttl_ms, at_end), "{item:?}");
        // The same words while it is held: its holder counts from now.
        assert_eq!(put(Some((&held, &entry(7, false))), item).1, DynamoLease::Renewed);
    }
    let (held, _) = put(None, java(1, ""));
    let (noted, lease) = write(Some((&held, &over)), java(1, r#","x":{"S":"y"}"#), false);
    assert_eq!(lease, DynamoLease::Kept, "whoever changes other attributes acquires nothing");
    assert_eq!(seen(&noted, &entry(8, true)).get("isReleased"), Some(&text("1")));
}

#[test]
fn an_expired_lock_reads_as_released_and_its_next_owner_has_a_new_token() {
    let (held, _) = put(None, java(1, ""));
    let shown = |expired| seen(&held, &entry(7, expired));
    assert_eq!(shown(false).get(TOKEN), Some(&AttributeValue::N(Number::from(7))));
    assert_eq!(shown(false).get("isReleased"), None);
    assert_eq!(shown(true).get("isReleased"), Some(&text("1")));
    let of_bob = with(java(9, ""), "ownerName", text("bob"));
    let (taken, _) = put(Some((&held, &entry(7, true))), of_bob);
    assert_eq!(taken.fence, ItemFence::ThisRevision);
}

#[test]
fn each_client_has_its_own_terms() {
    for (item, ms) in [(python(""), 30_500), (hero(""), 900), (hero(r#","ttl":{"N":"1735689600"}"#), 900)] {
        let (held, lease) = put(None, item.clone());
        assert_eq!(lease, grant(ms, AtEnd::Delete), "{item:?}");
        assert_eq!(seen(&held, &entry(5, false)).get(TOKEN), Some(&AttributeValue::N(Number::from(5))));
    }
    let (held, lease) = put(None, npm(""));
    assert_eq!(lease, grant(700, AtEnd::Expire));
    let seen = seen(&held, &entry(5, true));
    assert_eq!(seen.get("leaseDurationMs"), Some(&AttributeValue::N(Number::from(1))));
    assert_eq!(seen.get(TOKEN), Some(&AttributeValue::N(Number::from(3))), "its own");
    let go = with(java(1, ""), "leaseDuration", text("1m30.5s"));
    let go = with(go, "recordVersionNumber", text("0123456789abcdefABCDEFzyxwvuTSRQ"));
    assert_eq!(put(None, go).1, grant(90_500, AtEnd::Expire));
    let rust = with(java(1, ""), "leaseDuration", AttributeValue::N(Number::from(20)));
    assert_eq!(put(None, rust).1, grant(20_000, AtEnd::Expire));
}

/// Rust's `dynamodb_lock` 0.6 writes when its lease ends.
#[test]
fn a_length_that_is_a_time_is_read_as_the_end_of_the_lease() {
    let ends = |number: u64| with(java(1, ""), "leaseDuration", AttributeValue::N(Number::from(number)));
    let in_seconds = ends(NOW_MS / 1000 + 20);
    assert_eq!(put(None, in_seconds.clone()).1, grant(20_000, AtEnd::Expire));
    assert_eq!(put(None, ends(NOW_MS + 2_500)).1, grant(2_500, AtEnd::Expire));
    assert_eq!(
        put(None, ends(NOW_MS / 1000 - 1)).1,
        DynamoLease::None,
        "by a clock that is behind: a lease of nothing"
    );
    // The next heartbeat renews: it has another end, and is the same tenure.
    let (held, _) = put(None, in_seconds);
    let (renewed, lease) = put(Some((&held, &entry(7, false))), ends(NOW_MS / 1000 + 25));
    assert_eq!((renewed.fence, lease), (ItemFence::At(7), DynamoLease::Renewed));
}

#[test]
fn what_no_client_writes_is_no_lock() {
    let items = [
        with(java(1, ""), "recordVersionNumber", text("1")),
        with(java(1, ""), "recordVersionNumber", AttributeValue::N(Number::from(1))),
        with(java(1, ""), "leaseDuration", text("long")),
        with(java(1, ""), "isReleased", AttributeValue::Bool(true)),
        without(python(""), "expiry_time"),
        with(python(""), "expiry_time", text("never")),
        with(python(""), "record_version_number", text("v7")),
        without(hero(""), "lastUpdatedTimeInMs"),
        without(hero(""), "additionalAttributes"),
        with(npm(""), "guid", AttributeValue::B(vec![7; 16])),
        without(npm(""), TOKEN),
        // Of two recipes.
        java(1, "").into_iter().chain(python("")).collect(),
        java(1, "").into_iter().chain(npm("")).collect(),
        java(1, "").into_iter().chain(hero("")).collect(),
    ];
    for item in items {
        let (record, lease) = put(None, item.clone());
        assert_eq!((record.fence, lease), (ItemFence::None, DynamoLease::None), "{item:?}");
        assert_eq!(seen(&record, &entry(5, true)), item);
    }
    // The owner of what the key names.
    let table = lock_table("t", &["ownerName"]);
    assert!(ItemLock::from_item(&java(1, ""), rules(&table)).is_none());
}

#[test]
fn an_item_with_other_attributes_is_neither_deleted_nor_shortened() {
    let more = r#","salary":{"N":"9"}"#;
    for item in [python(more), hero(more), npm(more), hero(r#","ttl":{"S":"x"}"#)] {
        let (held, lease) = put(None, item.clone());
        let DynamoLease::Granted { at_end, .. } = lease else { panic!("{lease:?}") };
        assert_eq!(at_end, AtEnd::Expire, "{item:?}");
        let mut seen = seen(&held, &entry(5, true));
        if !item.contains_key(TOKEN) {
            seen.remove(TOKEN);
        }
        assert_eq!(seen, item);
    }
    // Such an attribute comes later: the lease that would delete the item is replaced.
    let (held, _) = put(None, python(""));
    let (_, lease) = write(Some((&held, &entry(5, false))), python(more), false);
    assert_eq!(lease, grant(30_500, AtEnd::Expire));
}

#[test]
fn a_token_of_the_client_stays_and_one_that_was_shown_is_not_stored() {
    let token = |number: u64| AttributeValue::N(Number::from(number));
    for own in [token(3), text("mine")] {
        let (held, _) = put(None, with(java(1, ""), TOKEN, own.clone()));
        assert_eq!(seen(&held, &entry(7, false)).get(TOKEN), Some(&own));
        let (renewed, _) = put(Some((&held, &entry(7, false))), with(java(2, ""), TOKEN, own.clone()));
        assert_eq!(seen(&renewed, &entry(8, false)).get(TOKEN), Some(&own));
    }
    let (held, _) = put(None, java(1, ""));
    for written_back in [7, 5] {
        let item = with(java(2, ""), TOKEN, token(written_back));
        let (renewed, _) = put(Some((&held, &entry(7, false))), item);
        assert_eq!(renewed.item.get(TOKEN), None);
    }
}

#[test]
fn no_lock_has_no_lease_and_a_plain_table_adds_nothing() {
    assert_eq!(put(None, item(r#"{"id":{"S":"x"},"owner":{"S":"ann"}}"#)).1, DynamoLease::None);
    let table = lock_table("t", &["key"]);
    let mut lock = java(1, "");
    let plain = Rules { knows_locks: false, ..rules(&table) };
    assert_eq!(written(None, &mut lock, plain, true, String::new), (ItemFence::None, DynamoLease::None));
    let record = ItemRecord { item: lock.clone(), fence: ItemFence::At(3), mark: None };
    assert_eq!(shown(&record, &entry(5, true), plain), lock);
    let short = Rules { lease_ms_max: 19_999, ..rules(&table) };
    assert_eq!(written(None, &mut lock, short, true, String::new), (ItemFence::ThisRevision, DynamoLease::None));
}

#[test]
fn fail_closed_locks_are_of_a_lock_client_and_have_no_lease() {
    let table = lock_table("t", &["key"]);
    let closed = without(without(npm(""), TOKEN), "leaseDurationMs");
    assert!(is_of_lock_client(&closed, rules(&table)) && is_of_lock_client(&npm(""), rules(&table)));
    assert_eq!(put(None, closed.clone()).1, DynamoLease::None);
    assert!(!is_of_lock_client(&with(closed, "x", text("y")), rules(&table)));
    assert!(!is_of_lock_client(&item(r#"{"key":{"S":"k"}}"#), rules(&table)));
}

proptest! {
    #[test]
    fn no_duration_panics(text in "[0-9a-zµ.]{0,8}|.*") {
        let _ = duration_ms(&text);
    }
}
