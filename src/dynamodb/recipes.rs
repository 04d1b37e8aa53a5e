//! The recipes by which clients make locks of items, and the features that a lock service adds to them without a change to the client.
//!
//! A client that waits for a lock watches the holder's item. If its version has not changed for a whole lease, the holder is dead, and the
//! waiter takes the item over. The store knows sooner: the item has a lease, which each write that says something about the lock renews.
//! When the lease ends, the lock is free in the terms of its client, and the next caller gets it at once:
//!
//! | client | a lock has | lease | when it is over |
//! |---|---|---|---|
//! | Java (1.x), Go dynamolock, Rust `dynamodb_lock` | `ownerName`, `recordVersionNumber`, `leaseDuration` | text of ms; text as `1m30s`; number of seconds, or of their end since 1970 | the item reads as `isReleased = "1"` |
//! | Python `python-dynamodb-lock` | `owner_name`, `record_version_number`, `lease_duration`, `expiry_time` | seconds | the item is deleted |
//! | npm `@deliveryhero/dynamodb-lock` | `ownerName`, `recordVersionNumber`, `leaseDurationInMs`, `lastUpdatedTimeInMs`, `additionalAttributes` | ms | the item is deleted |
//! | npm `dynamodb-lock-client` (fail-open) | `owner`, `guid`, `leaseDurationMs`, `fencingToken` | ms | the item reads as `leaseDurationMs = 1`: its next caller waits for so long |
//!
//! **Which items are locks.** The table has locks (see `tables`), and the item has all attributes of one recipe, and of no other, with the
//! types and the forms that its client writes: a version is a UUID (Go's: 32 letters and digits), `guid` has 64 bytes. An item with further
//! attributes is somebody's data too: it has a lease and a token, but it is neither deleted nor shown with another `leaseDurationMs`. Its
//! next caller then watches it, as with DynamoDB.
//!
//! Some clients' items have a time of expiry (Powertools, `dynamodb-lease`, `dyndbmutex`, `dynamo-dlm`, verrou, pynamodb's own recipes).
//! They compare it to their own clocks, and have nothing to gain. Neither has the Kinesis Client Library, whose items do not say how long a
//! lease is.
//!
//! **Why it is safe.** A holder counts its lease from before it sends the write that grants or renews it; the store counts from when it
//! applies that write, which is later. So the holder has given up first, as far as the rates of both clocks agree. (The Python client
//! counts a renewal from its answer, and warns its program after `safe_period`, which must be shorter than the lease by a round trip.
//! Rust's writes the end of its lease by its own clock: there, clocks must agree as on DynamoDB.) A client that does not watch its own
//! lease is as unsafe as it is on DynamoDB itself.
//!
//! So a write that leaves a lock which is not released, and says anything about it, has a live lease when it is answered: a put, and an
//! update of the owner, the version, the length or `isReleased`. It renews the lease of the same tenure, and is granted a new one with a
//! token of its own otherwise: also where it repeats, word by word, a tenure that is over. An update of other attributes changes nothing
//! about the lease.
//!
//! A condition sees what a reader sees. An update changes the item that is stored: a late heartbeat of the old holder, whose condition
//! names its own version, is granted the lock again if nobody has taken it in between (the commit compares), and does not store
//! `isReleased`. Where the item was deleted, its condition fails, and it learns that the lock is lost.
//!
//! **Taken back by an operator.** The lock is free at once. An item that stays reads with another version than any that its holder wrote:
//! so the late heartbeat fails here, and the client learns that it lost the lock. Its release fails likewise, as that of a lock that
//! another took. A caller that acquires by what it has read names the version that it has seen, and gets the lock.
//!
//! **The token.** The items of all but the last kind also show `fencingToken`: the revision of the acquisition (`item::Fence`). The last
//! client has an attribute of this name already, which it raises by itself. Another item whose client wrote an attribute of this name keeps
//! it, and shows no other; but a token that was shown and is written back is not stored.

use crate::{
    AttributeValue, Item, ItemEntry, Lease, Number,
    item::{ItemFence, ItemRecord},
    schema::TableProperties,
    store::AtEnd,
};
use lockkeeper_planted::Planted;

/// The attribute that shows the token.
pub(crate) const TOKEN: &str = "fencingToken";
/// A `leaseDuration` of more seconds is the end of the lease, and not a length. Rust's `dynamodb_lock` uses the same limit.
const LENGTH_SECONDS_MAX: u64 = 365 * 86_400;
/// A `leaseDuration` from here on is a time in milliseconds. In seconds it would be in the year 5138.
const TIME_MS_MIN: u64 = 100_000_000_000;
/// Number of bytes of a `guid`.
const GUID_BYTES: usize = 64;
/// Number of characters of a version of Go's dynamolock.
const GO_VERSION_CHARS: usize = 32;

/// The rules that decide whether an item is a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    /// The table of the item.
    pub(crate) table: &'a TableProperties,
    /// Whether items of the table may be locks.
    pub(crate) knows_locks: bool,
    /// Maximum length in milliseconds of the leases that are requested from the store.
    pub(crate) lease_ms_max: u64,
    /// The time in milliseconds since 1970.
    pub(crate) wall_ms: u64,
}

/// A lock as an item shows it.
struct ItemLock<'a> {
    recipe: Recipe,
    owner: &'a str,
    length: LeaseLength,
    released: bool,
    /// Whether every attribute belongs to the recipe or to the key.
    is_bare: bool,
}

/// The length of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseLength {
    Ms(u64),
    /// The lease ends at this time, in milliseconds since 1970.
    Until(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    Java,
    Python,
    DeliveryHero,
    FailOpen,
}

impl Recipe {
    const ALL: [Self; 4] = [Self::Java, Self::Python, Self::DeliveryHero, Self::FailOpen];

    /// The attributes of the owner and of the version, which changes with each renewal.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Java | Self::DeliveryHero => ["ownerName", "recordVersionNumber"],
            Self::Python => ["owner_name", "record_version_number"],
            Self::FailOpen => ["owner", "guid"],
        }
    }

    /// Further attributes that the client of this recipe writes.
    fn others(self) -> &'static [&'static str] {
        match self {
            Self::Java => &["leaseDuration", "isReleased", "data"],
            Self::Python => &["lease_duration", "expiry_time"],
            Self::DeliveryHero => &["leaseDurationInMs", "lastUpdatedTimeInMs", "additionalAttributes"],
            Self::FailOpen => &["leaseDurationMs", TOKEN, "lockAcquiredTimeUnixMs"],
        }
    }

    /// Reads the length of the lease of an item that has all attributes of this recipe, and whether the item reads as released.
    fn read(self, item: &Item, rules: Rules<'_>) -> Option<(LeaseLength, bool)> {
        let number = |name: &str| item.get(name).and_then(AttributeValue::as_number);
        let time_to_live = rules.table.time_to_live();

        Some(match self {
            Self::Java => {
                let length = match item.get("leaseDuration")? {
                    AttributeValue::S(text) => LeaseLength::Ms(duration_ms(text)?),
                    AttributeValue::N(seconds) => length_of_seconds(*seconds)?,
                    AttributeValue::B(_)
                    | AttributeValue::Bool(_)
                    | AttributeValue::Null
                    | AttributeValue::L(_)
                    | AttributeValue::M(_) => return None,
                    AttributeValue::Ss(_) | AttributeValue::Ns(_) | AttributeValue::Bs(_) => return None,
                };
                match item.get("isReleased") {
                    None => (length, false),
                    Some(AttributeValue::S(text)) if text == "1" => (length, true),
                    Some(_) => return None,
                }
            }
            Self::Python => {
                // The item's time to live has this name or another.
                number("expiry_time").or_else(|| number(time_to_live?))?;
                (LeaseLength::Ms(number("lease_duration")?.to_thousandths()?), false)
            }
            Self::DeliveryHero => {
                number("lastUpdatedTimeInMs")?;
                if !matches!(item.get("additionalAttributes")?, AttributeValue::M(_)) {
                    return None;
                }
                (LeaseLength::Ms(number("leaseDurationInMs")?.to_u64()?), false)
            }
            Self::FailOpen => {
                number(TOKEN)?.to_u64()?;
                let length_ms = number("leaseDurationMs")?.to_u64()?;
                (LeaseLength::Ms(length_ms), length_ms <= 1)
            }
        })
    }
}

impl<'a> ItemLock<'a> {
    /// Returns the lock that an item of this table is, if it fits one recipe and no other.
    fn from_item(item: &'a Item, rules: Rules<'_>) -> Option<Self> {
        if !rules.knows_locks {
            return None;
        }
        let mut locks = Recipe::ALL.into_iter().filter_map(|recipe| Self::by_recipe(recipe, item, rules));
        locks.next().filter(|_| locks.next().is_none())
    }

    fn by_recipe(recipe: Recipe, item: &'a Item, rules: Rules<'_>) -> Option<Self> {
        let [owner, version] = recipe.names();
        let is_key = |name: &str| rules.table.key_names().any(|key| key == name);
        if is_key(owner) || is_key(version) {
            return None;
        }

        let owner_name = item.get(owner)?.as_str()?;
        if !is_version(recipe, item.get(version)?) {
            return None;
        }

        let (length, released) = recipe.read(item, rules)?;

        let is_known = |name: &str, value: &AttributeValue| {
            let is_time_to_live = name == "ttl" || rules.table.time_to_live() == Some(name);
            recipe.names().contains(&name)
                || recipe.others().contains(&name)
                || is_key(name)
                || is_time_to_live && value.as_number().is_some()
        };

        let is_bare = item.iter().all(|(name, value)| is_known(name, value));
        Some(Self { recipe, owner: owner_name, length, released, is_bare })
    }

    /// Returns the length of the lease to request, if the lock has one.
    fn lease_ms(&self, rules: Rules<'_>) -> Option<u64> {
        let length_ms = match self.length {
            LeaseLength::Ms(length_ms) => length_ms,
            LeaseLength::Until(end_ms) => end_ms.saturating_sub(rules.wall_ms),
        };
        Some(length_ms).filter(|length_ms| (1..=rules.lease_ms_max).contains(length_ms) && !self.released)
    }

    /// Returns what the store does with the item when its lease ends.
    fn at_end(&self) -> AtEnd {
        let is_deleted = match self.recipe {
            Recipe::Python | Recipe::DeliveryHero => self.is_bare || Planted::LookalikeDeleted.is_on(),
            Recipe::Java | Recipe::FailOpen => false,
        };
        if is_deleted { AtEnd::Delete } else { AtEnd::Expire }
    }

    /// Whether a renewal of this lock is a renewal of the other one.
    fn has_same_terms(&self, other: &Self) -> bool {
        let has_same_length = match (self.length, other.length) {
            (LeaseLength::Until(_), LeaseLength::Until(_)) => true,
            (one, another) => one == another,
        };
        self.recipe == other.recipe && self.owner == other.owner && has_same_length && self.at_end() == other.at_end()
    }
}

/// Whether a client of the recipe writes versions of this form.
fn is_version(recipe: Recipe, version: &AttributeValue) -> bool {
    if recipe == Recipe::FailOpen {
        return is_guid(version);
    }
    let Some(text) = version.as_str() else { return false };
    let is_of_go = text.len() == GO_VERSION_CHARS && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_uuid(text) || recipe == Recipe::Java && is_of_go
}

fn is_uuid(text: &str) -> bool {
    let is_hyphen = |place| [8, 13, 18, 23].contains(&place);
    let mut places = text.bytes().enumerate();
    text.len() == 36
        && places.all(|(place, byte)| if is_hyphen(place) { byte == b'-' } else { byte.is_ascii_hexdigit() })
}

fn is_guid(value: &AttributeValue) -> bool {
    matches!(value, AttributeValue::B(bytes) if bytes.len() == GUID_BYTES)
}

/// Whether a client of one of the recipes writes items of this form: those that are locks, and npm's fail-closed locks, which have no
/// lease.
pub(crate) fn is_of_lock_client(item: &Item, rules: Rules<'_>) -> bool {
    if ItemLock::from_item(item, rules).is_some() {
        return true;
    }
    let is_fail_closed = item.iter().all(|(name, value)| match name.as_str() {
        "owner" => value.as_str().is_some(),
        "guid" => is_guid(value),
        other => rules.table.key_names().any(|key| key == other),
    });
    rules.knows_locks && is_fail_closed && item.contains_key("owner") && item.contains_key("guid")
}

/// Whether a change of this attribute says something about a lock: that it is acquired, renewed or released.
pub(crate) fn is_of_tenure(attribute: &str) -> bool {
    let lengths = ["leaseDuration", "leaseDurationInMs", "lease_duration", "leaseDurationMs", "isReleased"];
    lengths.contains(&attribute) || Recipe::ALL.iter().any(|recipe| recipe.names().contains(&attribute))
}

/// Reads a number of seconds, or a time in seconds or milliseconds since 1970.
fn length_of_seconds(number: Number) -> Option<LeaseLength> {
    let thousandths = number.to_thousandths()?;
    let seconds = thousandths / 1000;
    Some(if seconds < LENGTH_SECONDS_MAX {
        LeaseLength::Ms(thousandths)
    } else if seconds < TIME_MS_MIN {
        LeaseLength::Until(thousandths)
    } else {
        LeaseLength::Until(seconds)
    })
}

/// Reads the milliseconds of `20000`, or of Go's `1m30.5s`.
fn duration_ms(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok();
    }

    let mut rest = text;
    let mut total_ms = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let unit = rest[digits..].bytes().take_while(|byte| !byte.is_ascii_digit()).count();

        let amount = rest.get(..digits)?;
        let unit = rest.get(digits..digits + unit)?;
        let each_ms: u64 = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            // No lease is shorter than a millisecond.
            _ => return None,
        };

        let thousandths = amount.parse::<Number>().ok()?.to_thousandths()?;
        total_ms = total_ms.checked_add(thousandths.checked_mul(each_ms)? / 1_000)?;
        rest = &rest[digits + unit.len()..];
    }

    Some(total_ms)
}

/// Returns the item as a client sees it.
pub(crate) fn shown(record: &ItemRecord, entry: &ItemEntry, rules: Rules<'_>) -> Item {
    let item = shown_at(record, entry.modified, entry.expired, rules);
    if !entry.revoked {
        return item;
    }
    match ItemLock::from_item(&record.item, rules) {
        Some(lock) => without_its_version(item, lock.recipe, entry.modified),
        None => item,
    }
}

/// Returns the item of a lock that an operator took back, with another version than any that its holder wrote.
fn without_its_version(mut item: Item, recipe: Recipe, modified: u64) -> Item {
    let [_, version] = recipe.names();
    let text = format!("revoked-{modified}");
    let is_bytes = matches!(item.get(version), Some(AttributeValue::B(_)));
    item.insert(
        version.to_owned(),
        if is_bytes { AttributeValue::B(text.into_bytes()) } else { AttributeValue::S(text) },
    );
    item
}

/// Returns a record that was just written as a client sees it.
pub(crate) fn shown_at(record: &ItemRecord, modified: u64, expired: bool, rules: Rules<'_>) -> Item {
    let mut item = record.item.clone();
    let Some(lock) = ItemLock::from_item(&record.item, rules) else { return item };

    if expired {
        match lock.recipe {
            Recipe::Java => _ = item.insert("isReleased".to_owned(), AttributeValue::S("1".to_owned())),
            Recipe::FailOpen if lock.is_bare => {
                item.insert("leaseDurationMs".to_owned(), AttributeValue::N(Number::from(1)));
            }
            // The item has somebody's data, so it reads as it is.
            Recipe::FailOpen | Recipe::Python | Recipe::DeliveryHero => {}
        }
    }

    if let Some(token) = shown_token(record, modified, lock.recipe) {
        item.insert(TOKEN.to_owned(), AttributeValue::N(Number::from(token)));
    }
    item
}

/// Returns the token that a lock shows, unless its client wrote an attribute of this name.
fn shown_token(record: &ItemRecord, modified: u64, recipe: Recipe) -> Option<u64> {
    if recipe == Recipe::FailOpen || record.item.contains_key(TOKEN) {
        return None;
    }
    match record.fence {
        ItemFence::None => None,
        ItemFence::ThisRevision => Some(modified),
        ItemFence::At(revision) => Some(revision),
    }
}

/// The fence and the lease of an item that is about to be written over another. `says_tenure` is whether the write says something about the
/// lock, by being a put or by [`is_of_tenure`]; `name` is the lock's, for people.
///
/// A new lease has a new fence, and a renewed one keeps it: so the lock that people see has the token that the item shows.
pub(crate) fn written(
    before: Option<(&ItemRecord, &ItemEntry)>,
    item: &mut Item,
    rules: Rules<'_>,
    says_tenure: bool,
    name: impl FnOnce() -> String,
) -> (ItemFence, Lease) {
    drop_shown_token(before, item, rules);
    let Some(lock) = ItemLock::from_item(item, rules) else { return (ItemFence::None, Lease::None) };
    let before = before.and_then(|(record, entry)| Some((ItemLock::from_item(&record.item, rules)?, record, entry)));
    let is_held_on = |old: &ItemLock<'_>, entry: &ItemEntry| {
        old.owner == lock.owner && !old.released && !entry.expired && !lock.released
    };

    let Some(ttl_ms) = lock.lease_ms(rules) else {
        let fence = match &before {
            Some((old, record, entry)) if lock.released || is_held_on(old, entry) => kept(record, entry),
            Some(_) | None => ItemFence::ThisRevision,
        };
        return (fence, Lease::None);
    };
    match &before {
        Some((_, record, entry)) if entry.expired && Planted::PutHoldsNothing.is_on() => {
            (kept(record, entry), Lease::Keep)
        }
        Some((old, record, entry)) if entry.leased && is_held_on(old, entry) && old.has_same_terms(&lock) => {
            (kept(record, entry), if says_tenure { Lease::Renew } else { Lease::Keep })
        }
        // A client that changes other attributes of a lock that is over acquires nothing.
        Some((_, record, entry)) if !entry.leased && !says_tenure => (kept(record, entry), Lease::Keep),
        Some(_) | None => {
            let owner = lock.owner.to_owned();
            let lease = Lease::Grant { lock: Some(name()), owner, ttl_ms, at_end: lock.at_end() };
            let earlier = before.as_ref().filter(|_| Planted::NewHolderOldToken.is_on());
            (earlier.map_or(ItemFence::ThisRevision, |(_, record, entry)| kept(record, entry)), lease)
        }
    }
}

/// Drops a token that a client has read and writes back: it would otherwise be stored as the client's own attribute.
fn drop_shown_token(before: Option<(&ItemRecord, &ItemEntry)>, item: &mut Item, rules: Rules<'_>) {
    let Some((record, entry)) = before else { return };
    let Some(old) = ItemLock::from_item(&record.item, rules) else { return };
    let Some(shown) = shown_token(record, entry.modified, old.recipe) else { return };
    let written = item.get(TOKEN).and_then(AttributeValue::as_number);
    if written.and_then(Number::to_u64).is_some_and(|written| written <= shown) {
        item.remove(TOKEN);
    }
}

/// Returns the fence of a lock that is written without a new acquisition.
pub(crate) fn kept(record: &ItemRecord, entry: &ItemEntry) -> ItemFence {
    match record.fence {
        ItemFence::ThisRevision => ItemFence::At(entry.modified),
        known @ ItemFence::At(_) => known,
        ItemFence::None => ItemFence::ThisRevision,
    }
}

#[cfg(test)]
mod tests {
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

    fn entry(modified: u64, expired: bool) -> ItemEntry {
        ItemEntry { created: 1, modified, version: 1, leased: !expired, expired, revoked: false, value: Vec::new() }
    }

    fn rules(table: &TableProperties) -> Rules<'_> {
        Rules { table, knows_locks: true, lease_ms_max: 86_400_000, wall_ms: NOW_MS }
    }

    fn grant(ttl_ms: u64, at_end: AtEnd) -> Lease {
        Lease::Grant { lock: Some(NAME.to_owned()), owner: "ann".to_owned(), ttl_ms, at_end }
    }

    fn put(before: Option<(&ItemRecord, &ItemEntry)>, item: Item) -> (ItemRecord, Lease) {
        write(before, item, true)
    }

    fn write(before: Option<(&ItemRecord, &ItemEntry)>, mut item: Item, says_tenure: bool) -> (ItemRecord, Lease) {
        let table = lock_table("t", &["key"]);
        let (fence, lease) = written(before, &mut item, rules(&table), says_tenure, || NAME.to_owned());
        (ItemRecord { item, fence, mark: None }, lease)
    }

    fn seen(record: &ItemRecord, entry: &ItemEntry) -> Item {
        shown(record, entry, rules(&lock_table("t", &["key"])))
    }

    #[test]
    fn a_lease_is_granted_renewed_kept_and_given_up() {
        let (held, lease) = put(None, java(1, ""));
        assert_eq!((held.fence, lease), (ItemFence::ThisRevision, grant(20_000, AtEnd::Expire)));
        let (renewed, lease) = put(Some((&held, &entry(7, false))), java(2, ""));
        assert_eq!((renewed.fence, lease), (ItemFence::At(7), Lease::Renew));
        let (edited, lease) = write(Some((&renewed, &entry(8, false))), java(2, r#","x":{"S":"y"}"#), false);
        assert_eq!(
            (edited.fence, lease),
            (ItemFence::At(7), Lease::Keep),
            "a change of other attributes renews nothing"
        );
        let (released, lease) = put(Some((&edited, &entry(9, false))), java(2, r#","isReleased":{"S":"1"}"#));
        assert_eq!((released.fence, lease), (ItemFence::At(7), Lease::None));
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
            let revoked = ItemEntry { revoked: true, ..entry(7, true) };
            assert_eq!(put(Some((&held, &revoked)), item.clone()).1, grant(ttl_ms, at_end), "{item:?}");
            // The same words while it is held: its holder counts from now.
            assert_eq!(put(Some((&held, &entry(7, false))), item).1, Lease::Renew);
        }
        let (held, _) = put(None, java(1, ""));
        let (noted, lease) = write(Some((&held, &over)), java(1, r#","x":{"S":"y"}"#), false);
        assert_eq!(lease, Lease::Keep, "whoever changes other attributes acquires nothing");
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
        assert_eq!(put(None, ends(NOW_MS / 1000 - 1)).1, Lease::None, "by a clock that is behind: a lease of nothing");
        // The next heartbeat renews: it has another end, and is the same tenure.
        let (held, _) = put(None, in_seconds);
        let (renewed, lease) = put(Some((&held, &entry(7, false))), ends(NOW_MS / 1000 + 25));
        assert_eq!((renewed.fence, lease), (ItemFence::At(7), Lease::Renew));
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
            assert_eq!((record.fence, lease), (ItemFence::None, Lease::None), "{item:?}");
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
            let Lease::Grant { at_end, .. } = lease else { panic!("{lease:?}") };
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
        assert_eq!(put(None, item(r#"{"id":{"S":"x"},"owner":{"S":"ann"}}"#)).1, Lease::None);
        let table = lock_table("t", &["key"]);
        let mut lock = java(1, "");
        let plain = Rules { knows_locks: false, ..rules(&table) };
        assert_eq!(written(None, &mut lock, plain, true, String::new), (ItemFence::None, Lease::None));
        let record = ItemRecord { item: lock.clone(), fence: ItemFence::At(3), mark: None };
        assert_eq!(shown(&record, &entry(5, true), plain), lock);
        let short = Rules { lease_ms_max: 19_999, ..rules(&table) };
        assert_eq!(written(None, &mut lock, short, true, String::new), (ItemFence::ThisRevision, Lease::None));
    }

    #[test]
    fn fail_closed_locks_are_of_a_lock_client_and_have_no_lease() {
        let table = lock_table("t", &["key"]);
        let closed = without(without(npm(""), TOKEN), "leaseDurationMs");
        assert!(is_of_lock_client(&closed, rules(&table)) && is_of_lock_client(&npm(""), rules(&table)));
        assert_eq!(put(None, closed.clone()).1, Lease::None);
        assert!(!is_of_lock_client(&with(closed, "x", text("y")), rules(&table)));
        assert!(!is_of_lock_client(&item(r#"{"key":{"S":"k"}}"#), rules(&table)));
    }

    proptest! {
        #[test]
        fn no_duration_panics(text in "[0-9a-zµ.]{0,8}|.*") {
            let _ = duration_ms(&text);
        }
    }
}
