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
    AttributeValue, DynamoEntry, DynamoLease, Item, Number,
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
pub(crate) fn shown(record: &ItemRecord, entry: &DynamoEntry, rules: Rules<'_>) -> Item {
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
            Recipe::Java => {
                item.insert("isReleased".to_owned(), AttributeValue::S("1".to_owned()));
            }
            Recipe::FailOpen if lock.is_bare => {
                item.insert("leaseDurationMs".to_owned(), AttributeValue::N(Number::from(1)));
            }
            // The item has data of an application, so a read shows it unchanged.
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
    before: Option<(&ItemRecord, &DynamoEntry)>,
    item: &mut Item,
    rules: Rules<'_>,
    says_tenure: bool,
    name: impl FnOnce() -> String,
) -> (ItemFence, DynamoLease) {
    drop_shown_token(before, item, rules);
    let Some(lock) = ItemLock::from_item(item, rules) else { return (ItemFence::None, DynamoLease::None) };
    let before = before.and_then(|(record, entry)| Some((ItemLock::from_item(&record.item, rules)?, record, entry)));
    let is_held_on = |old: &ItemLock<'_>, entry: &DynamoEntry| {
        old.owner == lock.owner && !old.released && !entry.expired && !lock.released
    };

    let Some(ttl_ms) = lock.lease_ms(rules) else {
        let fence = match &before {
            Some((old, record, entry)) if lock.released || is_held_on(old, entry) => kept(record, entry),
            Some(_) | None => ItemFence::ThisRevision,
        };
        return (fence, DynamoLease::None);
    };
    match &before {
        Some((_, record, entry)) if entry.expired && Planted::PutHoldsNothing.is_on() => {
            (kept(record, entry), DynamoLease::Kept)
        }
        Some((old, record, entry)) if entry.leased && is_held_on(old, entry) && old.has_same_terms(&lock) => {
            (kept(record, entry), if says_tenure { DynamoLease::Renewed } else { DynamoLease::Kept })
        }
        // A client that changes other attributes of a lock that is over acquires nothing.
        Some((_, record, entry)) if !entry.leased && !says_tenure => (kept(record, entry), DynamoLease::Kept),
        Some(_) | None => {
            let owner = lock.owner.to_owned();
            let lease = DynamoLease::Granted { lock: Some(name()), owner, ttl_ms, at_end: lock.at_end() };
            let earlier = before.as_ref().filter(|_| Planted::NewHolderOldToken.is_on());
            (earlier.map_or(ItemFence::ThisRevision, |(_, record, entry)| kept(record, entry)), lease)
        }
    }
}

/// Drops a token that a client has read and writes back: it would otherwise be stored as the client's own attribute.
fn drop_shown_token(before: Option<(&ItemRecord, &DynamoEntry)>, item: &mut Item, rules: Rules<'_>) {
    let Some((record, entry)) = before else { return };
    let Some(old) = ItemLock::from_item(&record.item, rules) else { return };
    let Some(shown) = shown_token(record, entry.modified, old.recipe) else { return };
    let written = item.get(TOKEN).and_then(AttributeValue::as_number);
    if written.and_then(Number::to_u64).is_some_and(|written| written <= shown) {
        item.remove(TOKEN);
    }
}

/// Returns the fence of a lock that is written without a new acquisition.
pub(crate) fn kept(record: &ItemRecord, entry: &DynamoEntry) -> ItemFence {
    match record.fence {
        ItemFence::ThisRevision => ItemFence::At(entry.modified),
        known @ ItemFence::At(_) => known,
        ItemFence::None => ItemFence::ThisRevision,
    }
}

#[cfg(test)]
mod tests;
