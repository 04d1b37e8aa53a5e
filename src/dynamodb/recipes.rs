//! The recipes by which clients make locks of items, and what a lock service adds to them without a change to the client.
//!
//! A client that waits for a lock watches the holder's item: when its version has not changed for a whole lease, the holder is dead, and
//! the waiter takes the item over. The store knows sooner: the item carries a lease, which each write that changes the version renews.
//! When it ends, the item reads as released, in the terms of its client, and the next caller has it at once:
//!
//! | client | a lock is | lease | released reads as |
//! |---|---|---|---|
//! | Java (1.x), Go dynamolock, Rust `dynamodb_lock` | `ownerName`, `recordVersionNumber`, `leaseDuration` | text of ms; text as `1m30s`; number of seconds | `isReleased = "1"` |
//! | Python `python-dynamodb-lock` | `owner_name`, `record_version_number`, `lease_duration` | seconds | no item |
//! | npm `@deliveryhero/dynamodb-lock` | `ownerName`, `recordVersionNumber`, `leaseDurationInMs` | ms | no item |
//! | npm `dynamodb-lock-client` (fail-open) | `owner`, `guid`, `leaseDurationMs` | ms | `leaseDurationMs = 1`: its next caller waits for so long |
//!
//! Clients whose items hold a time of expiry (Powertools, `dynamodb-lease`, `dyndbmutex`, `dynamo-dlm`, verrou, pynamodb's own recipes)
//! compare it to their own clocks, and have nothing to gain; nor has the Kinesis Client Library, whose items do not say how long a lease
//! is.
//!
//! **Why it is safe.** A holder counts its lease from before it sends the write that grants or renews it; the store counts from when it
//! applies that write, which is later. So the holder has given up first, as far as the rates of both clocks agree. (The Python client
//! counts a renewal from its answer, and warns its program after `safe_period`, which must be shorter than the lease by a round trip.) A
//! client that does not watch its own lease is as unsafe as it is on DynamoDB itself.
//!
//! A condition sees what a reader sees. An update changes the item that is stored: a late heartbeat of the old holder, whose condition
//! names its own version, renews its lease if nobody has taken the lock in between (the commit compares), and does not store
//! `isReleased`. Where released means absent, its condition fails, and it learns that the lock is lost.
//!
//! **Taken back by an operator.** The item reads as released at once, and with another version than any that its holder wrote: so the late
//! heartbeat fails here, and the client learns that it lost the lock. Its release fails likewise, as that of a lock that another took.
//! A caller that acquires by what it has read names the version that it has seen, and gets the lock.
//!
//! **The token.** The items of all but the last kind also show `fencingToken`: the revision of the acquisition (`item::Fence`). The last
//! client has an attribute of this name already, which it raises by itself.

use crate::{
    Entry, Item, Lease, Number, Value,
    item::{Fence, Record},
    store::AtEnd,
};

/// The attribute that shows the token.
pub(crate) const TOKEN: &str = "fencingToken";

/// A lock, as an item shows it.
struct Lock<'a> {
    recipe: Recipe,
    owner: &'a str,
    /// Changes with each renewal.
    version: &'a Value,
    lease_ms: u64,
    released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    Java,
    Python,
    DeliveryHero,
    FailOpen,
}

impl<'a> Lock<'a> {
    fn of(item: &'a Item) -> Option<Self> {
        let text = |name: &str| item.get(name).and_then(Value::as_str);
        let number = |name: &str| item.get(name).and_then(Value::as_number);
        if let Some(owner) = text("ownerName") {
            let version = item.get("recordVersionNumber")?;
            if let Some(ms) = number("leaseDurationInMs") {
                let lease_ms = ms.to_u64()?;
                return Some(Self { recipe: Recipe::DeliveryHero, owner, version, lease_ms, released: false });
            }
            let lease_ms = match item.get("leaseDuration")? {
                Value::S(text) => duration_ms(text)?,
                Value::N(seconds) => seconds.to_thousandths()?,
                Value::B(_) | Value::Bool(_) | Value::Null | Value::L(_) | Value::M(_) => return None,
                Value::Ss(_) | Value::Ns(_) | Value::Bs(_) => return None,
            };
            let released = item.contains_key("isReleased");
            return Some(Self { recipe: Recipe::Java, owner, version, lease_ms, released });
        }
        if let Some(owner) = text("owner_name") {
            let version = item.get("record_version_number")?;
            let lease_ms = number("lease_duration")?.to_thousandths()?;
            return Some(Self { recipe: Recipe::Python, owner, version, lease_ms, released: false });
        }
        let owner = text("owner")?;
        let version = item.get("guid")?;
        let lease_ms = number("leaseDurationMs")?.to_u64()?;
        Some(Self { recipe: Recipe::FailOpen, owner, version, lease_ms, released: lease_ms <= 1 })
    }
}

/// Milliseconds of `20000`, or of Go's `1m30.5s`.
fn duration_ms(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok();
    }
    let mut rest = text;
    let mut total_ms = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let unit = rest[digits..].bytes().take_while(|byte| !byte.is_ascii_digit()).count();
        let (amount, unit) = (rest.get(..digits)?, rest.get(digits..digits + unit)?);
        let each_ms: u64 = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            // Less than a millisecond: nobody's lease.
            _ => return None,
        };
        let thousandths = amount.parse::<Number>().ok()?.to_thousandths()?;
        total_ms = total_ms.checked_add(thousandths.checked_mul(each_ms)? / 1_000)?;
        rest = &rest[digits + unit.len()..];
    }
    Some(total_ms)
}

/// The item as a client sees it. `None`: it sees none.
pub(crate) fn shown(record: &Record, entry: &Entry, enabled: bool) -> Option<Item> {
    let item = shown_at(record, entry.modified, entry.expired, enabled)?;
    Some(if entry.revoked && enabled { without_its_version(item, entry.modified) } else { item })
}

/// The item of a lock that an operator took back: with another version than any that its holder wrote.
fn without_its_version(mut item: Item, modified: u64) -> Item {
    let name = match Lock::of(&item).map(|lock| lock.recipe) {
        Some(Recipe::Java | Recipe::DeliveryHero) => "recordVersionNumber",
        Some(Recipe::Python) => "record_version_number",
        Some(Recipe::FailOpen) => "guid",
        None => return item,
    };
    let text = format!("revoked-{modified}");
    let is_bytes = matches!(item.get(name), Some(Value::B(_)));
    item.insert(name.to_owned(), if is_bytes { Value::B(text.into_bytes()) } else { Value::S(text) });
    item
}

/// The same, of a record that was just written.
pub(crate) fn shown_at(record: &Record, modified: u64, expired: bool, enabled: bool) -> Option<Item> {
    let mut item = record.item.clone();
    if !enabled {
        return Some(item);
    }
    let Some(lock) = Lock::of(&record.item) else { return Some(item) };
    let recipe = lock.recipe;
    if expired {
        match recipe {
            Recipe::Java => item.insert("isReleased".to_owned(), Value::S("1".to_owned())),
            Recipe::FailOpen => item.insert("leaseDurationMs".to_owned(), Value::N(Number::from(1))),
            Recipe::Python | Recipe::DeliveryHero => return None,
        };
    }
    let token = match record.fence {
        Fence::None => return Some(item),
        Fence::ThisRevision => modified,
        Fence::At(revision) => revision,
    };
    if recipe != Recipe::FailOpen {
        item.insert(TOKEN.to_owned(), Value::N(Number::from(token)));
    }
    Some(item)
}

/// The fence and the lease of an item that is about to be written over another. `lease_ms_max`: longer leases are not asked for. `name`:
/// the lock's, for people.
///
/// A new lease has a new fence, and a renewed one keeps it: so the lock that people see has the token that the item shows.
pub(crate) fn written(
    before: Option<(&Record, &Entry)>,
    item: &mut Item,
    enabled: bool,
    lease_ms_max: u64,
    name: impl FnOnce() -> String,
) -> (Fence, Lease) {
    let recipe = Lock::of(item).map(|lock| lock.recipe).filter(|_| enabled);
    if recipe.is_some_and(|recipe| recipe != Recipe::FailOpen) {
        // A client that writes back what it has read would store the token of an earlier acquisition.
        item.remove(TOKEN);
    }
    let Some(lock) = Lock::of(item).filter(|_| enabled) else { return (Fence::None, Lease::None) };
    let before = before.and_then(|(record, entry)| Some((Lock::of(&record.item)?, record, entry)));
    let is_leased = |lock: &Lock<'_>| lock.lease_ms > 0 && lock.lease_ms <= lease_ms_max && !lock.released;
    let grants = match &before {
        Some((old, _, entry)) => {
            let same = old.owner == lock.owner && old.lease_ms == lock.lease_ms && !old.released;
            // An expired lock that is written without a new version stays over.
            !(same && (entry.leased || entry.expired && old.version == lock.version))
        }
        None => true,
    };
    let fence = match &before {
        Some(_) if is_leased(&lock) && grants => Fence::ThisRevision,
        Some((old, record, entry)) => {
            let still_held = old.owner == lock.owner && !old.released && !entry.expired;
            match record.fence {
                Fence::ThisRevision if still_held || lock.released => Fence::At(entry.modified),
                known @ Fence::At(_) if still_held || lock.released => known,
                Fence::None | Fence::ThisRevision | Fence::At(_) => Fence::ThisRevision,
            }
        }
        None => Fence::ThisRevision,
    };
    let lease = match (&before, is_leased(&lock)) {
        (_, false) => Lease::None,
        (_, true) if grants => {
            let owner = lock.owner.to_owned();
            Lease::Grant { lock: Some(name()), owner, ttl_ms: lock.lease_ms, at_end: AtEnd::Expire }
        }
        (Some((old, ..)), true) if old.version != lock.version => Lease::Renew,
        (_, true) => Lease::Keep,
    };
    (fence, lease)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn item(json: &str) -> Item {
        serde_json::from_str(json).unwrap()
    }

    fn java(version: &str, more: &str) -> Item {
        item(&format!(
            r#"{{"key":{{"S":"k"}},"ownerName":{{"S":"ann"}},"recordVersionNumber":{{"S":"{version}"}},"leaseDuration":{{"S":"20000"}}{more}}}"#
        ))
    }

    fn entry(modified: u64, expired: bool) -> Entry {
        Entry { created: 1, modified, version: 1, leased: !expired, expired, revoked: false, value: Vec::new() }
    }

    const NAME: &str = "dynamodb/t/k";

    fn grant(ttl_ms: u64) -> Lease {
        Lease::Grant { lock: Some(NAME.to_owned()), owner: "ann".to_owned(), ttl_ms, at_end: AtEnd::Expire }
    }

    fn write(before: Option<(&Record, &Entry)>, mut item: Item) -> (Record, Lease) {
        let (fence, lease) = written(before, &mut item, true, 86_400_000, || NAME.to_owned());
        (Record { item, fence, mark: None }, lease)
    }

    #[test]
    fn a_lease_is_granted_renewed_kept_and_given_up() {
        let (held, lease) = write(None, java("1", ""));
        assert_eq!((held.fence, lease), (Fence::ThisRevision, grant(20_000)));
        let (renewed, lease) = write(Some((&held, &entry(7, false))), java("2", ""));
        assert_eq!((renewed.fence, lease), (Fence::At(7), Lease::Renew));
        let (edited, lease) = write(Some((&renewed, &entry(8, false))), java("2", r#","x":{"S":"y"}"#));
        assert_eq!(
            (edited.fence, lease),
            (Fence::At(7), Lease::Keep),
            "whoever writes without a new version renews nothing"
        );
        let (released, lease) = write(Some((&edited, &entry(9, false))), java("2", r#","isReleased":{"S":"1"}"#));
        assert_eq!((released.fence, lease), (Fence::At(7), Lease::None));
        let (again, lease) = write(Some((&released, &entry(10, false))), java("3", ""));
        assert_eq!((again.fence, lease), (Fence::ThisRevision, grant(20_000)));
    }

    #[test]
    fn an_expired_lock_reads_as_released_and_its_next_owner_has_a_new_token() {
        let (held, _) = write(None, java("1", ""));
        let shown = |expired| shown(&held, &entry(7, expired), true).unwrap();
        assert_eq!(shown(false).get(TOKEN), Some(&Value::N(Number::from(7))));
        assert_eq!(shown(false).get("isReleased"), None);
        assert_eq!(shown(true).get("isReleased"), Some(&Value::S("1".into())));
        let mut of_bob = java("9", "");
        of_bob.insert("ownerName".into(), Value::S("bob".into()));
        let (taken, _) = write(Some((&held, &entry(7, true))), of_bob);
        assert_eq!(taken.fence, Fence::ThisRevision);
    }

    #[test]
    fn each_client_has_its_own_terms() {
        let python = r#"{"owner_name":{"S":"ann"},"record_version_number":{"S":"1"},"lease_duration":{"N":"30.5"}}"#;
        let hero = r#"{"ownerName":{"S":"ann"},"recordVersionNumber":{"S":"1"},"leaseDurationInMs":{"N":"900"}}"#;
        for (json, ms) in [(python, 30_500), (hero, 900)] {
            let (held, lease) = write(None, item(json));
            assert_eq!(lease, grant(ms), "{json}");
            assert_eq!(shown(&held, &entry(5, true), true), None);
            assert_eq!(shown(&held, &entry(5, false), true).unwrap().get(TOKEN), Some(&Value::N(Number::from(5))));
        }
        let npm = r#"{"owner":{"S":"ann"},"guid":{"B":"AA=="},"leaseDurationMs":{"N":"700"},"fencingToken":{"N":"3"}}"#;
        let (held, lease) = write(None, item(npm));
        assert_eq!(lease, grant(700));
        let seen = shown(&held, &entry(5, true), true).unwrap();
        assert_eq!(seen.get("leaseDurationMs"), Some(&Value::N(Number::from(1))));
        assert_eq!(seen.get(TOKEN), Some(&Value::N(Number::from(3))), "its own");
        let go = java("1", "").into_iter().chain([("leaseDuration".into(), Value::S("1m30.5s".into()))]).collect();
        assert_eq!(write(None, go).1, grant(90_500));
        let rust = java("1", "").into_iter().chain([("leaseDuration".into(), Value::N(Number::from(20)))]).collect();
        assert_eq!(write(None, rust).1, grant(20_000));
    }

    #[test]
    fn no_lock_has_no_lease_and_a_plain_table_adds_nothing() {
        assert_eq!(write(None, item(r#"{"id":{"S":"x"},"owner":{"S":"ann"}}"#)).1, Lease::None);
        let mut lock = java("1", "");
        assert_eq!(written(None, &mut lock, false, u64::MAX, String::new), (Fence::None, Lease::None));
        let record = Record { item: lock.clone(), fence: Fence::At(3), mark: None };
        assert_eq!(shown(&record, &entry(5, true), false), Some(lock.clone()));
        assert_eq!(written(None, &mut lock, true, 19_999, String::new), (Fence::ThisRevision, Lease::None));
    }

    proptest! {
        #[test]
        fn no_duration_panics(text in "[0-9a-zµ.]{0,8}|.*") {
            let _ = duration_ms(&text);
        }
    }
}
