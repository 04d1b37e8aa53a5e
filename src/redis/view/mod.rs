//! The keyspace as the commands of one unit see it: what was loaded, all of one moment, and the writes of the commands before.
//!
//! A view answers at once or stops with [`Stop::Missing`]. It then knows what is missing ([`UnitView::needs`]), and whoever runs the unit
//! loads that and begins again with another view. So commands are plain functions, without waiting.
//!
//! At the end, [`UnitView::into_txn`] makes a transaction of the writes. Its conditions are that every entry that was read, absent ones
//! included, is as it was, and that no entry came into a range that was read.

mod cursors;
mod loaded;
mod parts;
mod slot;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use lockkeeper_planted::Planted;

use crate::{
    RedisCondition, RedisTxn, RedisWrite,
    data::{Datum, DatumKind, Structure},
    key::{WAITED_BYTES_MAX, database_end, database_start, prefix_end, store_key},
    reserved,
};

pub(crate) use cursors::Cursors;
pub(crate) use loaded::{Loaded, LoadedKey, LoadedRange, RangeNeed, UnitNeeds};
use slot::{KeySlot, SlotChange};
pub(crate) use slot::{Life, LockToken};

/// Units of work of one unit: elements that are visited, and 32 bytes each that are read or copied.
const WORK_UNITS_MAX: usize = 2 << 20;
/// Bytes that are read or copied for one unit of work.
const WORK_UNIT_BYTES: usize = 32;
/// Maximum number of messages that a unit publishes to somebody.
const PUBLISHED_MAX: usize = 100;
/// Maximum number of all its messages. Receivers of those that had none are counted again after the commit.
const UNHEARD_MAX: usize = 1000;
/// Maximum number of keys that are counted one by one: the keyspace compares no more in a transaction.
const COMPARED_KEYS_MAX: usize = 256;
/// Maximum number of bytes that the commands of a unit write, all together.
const WRITTEN_BYTES_MAX: usize = 3 << 20;

/// Why a command has no reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is refused with this error, and nothing else.
    Refused(String),
    /// Something is not loaded. The unit is run again.
    Missing,
    /// The whole unit is refused with this error: it takes more than a unit may.
    Over(String),
}

impl Stop {
    /// The text for a value of another type than the command is for.
    pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

    /// Makes an error of this text.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }

    /// The error for a value of another type than the command is for.
    pub(crate) fn wrong_type() -> Self {
        Self::refused(Self::WRONG_TYPE)
    }
}

/// The moment of a unit and its random numbers: the same in each of its runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitMoment {
    /// Microseconds since 1970. There is none until something was read: the read shows what was committed before, and the time must not be
    /// before that.
    pub(crate) wall_us: Option<u64>,
    /// The seed of its random numbers.
    pub(crate) seed: u64,
}

/// What the commands of a unit see and write.
#[derive(Clone, Debug)]
pub(crate) struct UnitView {
    /// The entries that were read from the store.
    loaded: Arc<Loaded>,
    /// Positions of scans, which outlive the unit.
    cursors: Arc<Cursors>,
    /// The time of the unit.
    moment: UnitMoment,
    /// The selected database.
    pub(crate) database: u8,
    /// Whether a script runs. Some commands differ in it.
    pub(crate) is_script: bool,
    /// The keys that were asked for, by their names in the store.
    slots: BTreeMap<Vec<u8>, KeySlot>,
    /// Databases that the unit has emptied.
    flushed: BTreeSet<u8>,
    /// Ranges that were read: each must have no entry that came later than the revision.
    ranges_read: BTreeSet<(Vec<u8>, Vec<u8>, u64)>,
    /// Revisions of entries that were seen in ranges, or read before they were flushed.
    seen: BTreeSet<(Vec<u8>, u64)>,
    /// Whether keys were counted by their number alone.
    has_uncompared_count: bool,
    /// What was asked for and is not loaded.
    needs: UnitNeeds,
    /// Messages for channels, in their order.
    published: Vec<PublishedMessage>,
    /// Work that was done.
    work: usize,
    /// Bytes that were written.
    written_bytes: usize,
    /// The state of the random numbers.
    random: u64,
}

/// A message that a unit publishes.
#[derive(Clone, Debug)]
pub(crate) struct PublishedMessage {
    pub(crate) channel: Vec<u8>,
    pub(crate) text: Vec<u8>,
    /// Whether it had receivers when they were counted. That was before the unit ran: others may have subscribed since.
    pub(crate) has_receivers: bool,
}

/// A key of a database, in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenKey {
    /// The key as clients write it.
    pub(crate) key: Vec<u8>,
    /// The type of its value.
    pub(crate) kind: DatumKind,
}

impl UnitView {
    /// Makes a view in which nothing has happened yet.
    pub(crate) fn new(loaded: Arc<Loaded>, cursors: Arc<Cursors>, moment: UnitMoment, database: u8) -> Self {
        Self {
            loaded,
            cursors,
            moment,
            database,
            is_script: false,
            slots: BTreeMap::new(),

            flushed: BTreeSet::new(),
            ranges_read: BTreeSet::new(),
            seen: BTreeSet::new(),
            has_uncompared_count: false,
            needs: UnitNeeds::default(),
            published: Vec::new(),
            work: 0,
            written_bytes: 0,
            random: moment.seed,
        }
    }

    /// Has the transaction depend on these entries, too, by their keys in the store. What creates one of them decided by its absence.
    pub(crate) fn watch(&mut self, watched: &[(Vec<u8>, u64)]) {
        for (key, revision) in watched {
            self.seen.insert((key.clone(), *revision));
            if let Some(entry) = self.loaded.entries.get(key) {
                let slot = self.slots.entry(key.clone()).or_insert_with(|| KeySlot::new(entry.clone()));
                slot.is_decided = true;
            }
        }
    }

    /// Microseconds since 1970.
    pub(crate) fn wall_us(&mut self) -> Result<u64, Stop> {
        self.moment.wall_us.ok_or_else(|| {
            self.needs.time = true;
            Stop::Missing
        })
    }

    /// Milliseconds since 1970.
    pub(crate) fn wall_ms(&mut self) -> Result<u64, Stop> {
        self.wall_us().map(|us| us / 1000)
    }

    /// What was asked for and is not loaded.
    pub(crate) fn needs(&self) -> &UnitNeeds {
        &self.needs
    }

    /// Whether something is written.
    pub(crate) fn has_writes(&self) -> bool {
        !self.flushed.is_empty() || self.slots.values().any(|slot| slot.change != SlotChange::None)
    }

    /// Whether something is written, or published to somebody.
    pub(crate) fn has_effects(&self) -> bool {
        self.has_writes() || self.published.iter().any(|message| message.has_receivers)
    }

    /// Has a message sent after the commit. Returns the number of its receivers now.
    pub(crate) fn publish(&mut self, channel: &[u8], message: &[u8]) -> Result<u64, Stop> {
        if channel.len() > WAITED_BYTES_MAX {
            let text = format!("ERR the name of a channel has at most {WAITED_BYTES_MAX} bytes: use a shorter one");
            return Err(Stop::Refused(text));
        }
        if reserved::is_reserved(channel) {
            return Err(Stop::Refused(reserved::refusal(channel)));
        }
        let Some(receivers) = self.loaded.receivers.get(channel).copied() else {
            self.needs.receivers.insert(channel.to_vec());
            return Err(Stop::Missing);
        };

        self.count_written(channel.len() + message.len())?;
        let has_receivers = receivers > 0;
        let heard = self.published.iter().filter(|message| message.has_receivers).count();
        if has_receivers && heard == PUBLISHED_MAX || self.published.len() == UNHEARD_MAX {
            let text = format!(
                "ERR a transaction publishes at most {PUBLISHED_MAX} messages that somebody receives, and {UNHEARD_MAX} in all: make several \
                 of it"
            );
            return Err(Stop::Over(text));
        }
        self.published.push(PublishedMessage { channel: channel.to_vec(), text: message.to_vec(), has_receivers });
        Ok(receivers)
    }

    /// The messages that are to be sent after the commit.
    pub(crate) fn take_published(&mut self) -> Vec<PublishedMessage> {
        std::mem::take(&mut self.published)
    }

    /// Spends work. Fails if the unit has none left.
    pub(crate) fn spend(&mut self, units: usize) -> Result<(), Stop> {
        self.work = self.work.saturating_add(units);
        if self.work <= WORK_UNITS_MAX {
            return Ok(());
        }
        Err(Stop::Over(format!(
            "ERR the commands take more than {WORK_UNITS_MAX} units of work, the limit of a transaction (a unit: an element visited, or \
             {WORK_UNIT_BYTES} bytes read): use fewer or smaller values"
        )))
    }

    /// Spends work for bytes that are read or copied.
    pub(crate) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Stop> {
        self.spend(1 + bytes / WORK_UNIT_BYTES)
    }

    /// Copies stored bytes. The work is charged first, so that a unit without budget takes no memory.
    pub(crate) fn copy(&mut self, stored: &[u8]) -> Result<Vec<u8>, Stop> {
        self.spend_bytes(stored.len())?;
        Ok(stored.to_vec())
    }

    /// Number of bytes for which the work that was done is enough.
    pub(crate) fn paid_bytes(&self) -> usize {
        self.work.saturating_mul(WORK_UNIT_BYTES)
    }

    /// Counts bytes that a command writes. Fails if the unit writes too many.
    pub(crate) fn count_written(&mut self, bytes: usize) -> Result<(), Stop> {
        self.written_bytes = self.written_bytes.saturating_add(bytes);
        if self.written_bytes <= WRITTEN_BYTES_MAX {
            return Ok(());
        }
        Err(Stop::Over(format!(
            "ERR the commands write more than {WRITTEN_BYTES_MAX} bytes, the limit of a transaction: write less at a time"
        )))
    }

    /// A number below `bound`, which is not zero. It is the same in each run of the unit.
    pub(crate) fn random_below(&mut self, bound: usize) -> usize {
        // Numbers of splitmix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        usize::try_from(bits % bound.max(1) as u64).unwrap_or(0)
    }

    /// The type of a key's value.
    pub(crate) fn kind(&mut self, key: &[u8]) -> Result<Option<DatumKind>, Stop> {
        let slot = self.slot(key)?;
        slot.kind()
    }

    /// Whether a key is there.
    pub(crate) fn exists(&mut self, key: &[u8]) -> Result<bool, Stop> {
        Ok(self.slot(key)?.is_present())
    }

    /// The string of a key. Fails on a value of another type.
    pub(crate) fn text(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        self.text_part(key, |length| 0..length)
    }

    /// The part of the string of a key that is chosen by the length of the whole. No more is copied, nor paid for. Fails on a value of
    /// another type.
    pub(crate) fn text_part(
        &mut self,
        key: &[u8],
        choose: impl FnOnce(usize) -> Range<usize>,
    ) -> Result<Option<Vec<u8>>, Stop> {
        let Some(text) = self.slot(key)?.text()? else { return Ok(None) };
        let part = choose(text.len());
        self.spend_bytes(part.len())?;
        let text = self.slot(key)?.text()?;
        Ok(text.and_then(|text| text.get(part)).map(<[u8]>::to_vec))
    }

    /// The length of the string of a key in bytes; 0 if there is none. Fails on a value of another type.
    pub(crate) fn text_length(&mut self, key: &[u8]) -> Result<usize, Stop> {
        Ok(self.slot(key)?.text()?.map_or(0, <[u8]>::len))
    }

    /// The structure of a key, to be read; an empty one if there is none. Fails on a value of another type.
    pub(crate) fn read<T: Structure>(&mut self, key: &[u8]) -> Result<Arc<T>, Stop> {
        self.datum(key)?;
        match self.slot(key)?.datum() {
            None => Ok(Arc::default()),
            Some(datum) => T::from_datum(datum).cloned().ok_or_else(Stop::wrong_type),
        }
    }

    /// The structure of a key, to be changed and put back. Until then the key reads as absent, so no error may come in between.
    pub(crate) fn take<T: Structure>(&mut self, key: &[u8]) -> Result<T, Stop> {
        let read = self.read::<T>(key)?;
        self.spend(1)?;
        self.slot(key)?.forget_datum();
        if Arc::strong_count(&read) > 1 {
            self.spend(read.part_count())?;
        }
        Ok(Arc::unwrap_or_clone(read))
    }

    /// Puts a structure back, with the deadline that the key has. The key is gone if the structure is empty.
    pub(crate) fn put_back<T: Structure>(&mut self, key: &[u8], structure: T) -> Result<(), Stop> {
        let is_gone = structure.part_count() == 0;
        let slot = self.slot(key)?;
        if is_gone {
            slot.delete();
        } else {
            slot.put(structure.into_datum(), None);
        }
        Ok(())
    }

    /// Puts a structure, and forgets what the key had before, also its deadline.
    pub(crate) fn replace<T: Structure>(&mut self, key: &[u8], structure: T) -> Result<(), Stop> {
        let is_gone = structure.part_count() == 0;
        let slot = self.slot(key)?;
        if is_gone {
            slot.delete();
        } else {
            slot.put(structure.into_datum(), Some(Life::Endless));
        }
        Ok(())
    }

    /// Puts a string. Without a life, the key keeps the one that it has.
    pub(crate) fn put_text(&mut self, key: &[u8], text: Vec<u8>, life: Option<Life>) -> Result<(), Stop> {
        self.slot(key)?.put(Datum::Text(text), life);
        Ok(())
    }

    /// Removes a key, and returns whether it was there.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<bool, Stop> {
        let slot = self.slot(key)?;
        let was_present = slot.is_present();
        slot.delete();
        Ok(was_present)
    }

    /// The rest of a key's life in milliseconds. `None` means that there is no such key.
    pub(crate) fn life(&mut self, key: &[u8]) -> Result<Option<Life>, Stop> {
        let now_ms = self.loaded.now_ms;
        let slot = self.slot(key)?;
        Ok(slot.is_present().then(|| slot.life(now_ms)))
    }

    /// Gives a key that is there another life.
    pub(crate) fn set_life(&mut self, key: &[u8], life: Life) -> Result<(), Stop> {
        self.slot(key)?.set_life(life);
        Ok(())
    }

    /// Notes that the unit decides by the absence of this key: what creates it then is a lock, if it has a deadline.
    pub(crate) fn note_decided(&mut self, key: &[u8]) -> Result<(), Stop> {
        self.slot(key)?.is_decided = true;
        Ok(())
    }

    /// Moves a key with its value and the rest of its life.
    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), Stop> {
        self.datum(from)?;
        self.slot(to)?;
        let from = self.slot(from)?;
        let moved = from.datum().cloned();
        let expiry = from.expiry();
        from.delete();

        let Some(moved) = moved else { return Ok(()) };
        let to = self.slot(to)?;
        to.put(moved, Some(Life::Endless));
        to.set_expiry(expiry);
        Ok(())
    }

    /// The token of the lock that a key is: the revision of the write that made it a lock, or that created it.
    pub(crate) fn token(&mut self, key: &[u8]) -> Result<Option<LockToken>, Stop> {
        let stored = store_key(self.database, key);
        Ok(self.slot(key)?.token(&stored))
    }

    /// Removes all keys of a database.
    pub(crate) fn flush(&mut self, database: u8) {
        let range = database_start(database)..database_end(database);
        let gone: Vec<_> = self.slots.range(range).map(|(key, _)| key.clone()).collect();
        for key in gone {
            // The unit has used the value that it read, so the commit must still compare the revision.
            if let Some(slot) = self.slots.remove(&key).filter(|slot| !slot.is_flushed) {
                self.seen.insert((key, slot.revision()));
            }
        }
        self.flushed.insert(database);
    }

    /// The keys of the selected database from one on that begin with this prefix, in their order, and whether there are more. At most about
    /// `limit` of them are read from the store.
    pub(crate) fn keys(&mut self, after: &[u8], prefix: &[u8], limit: usize) -> Result<(Vec<SeenKey>, bool), Stop> {
        let start = store_key(self.database, prefix);
        let end = prefix_end(start.clone());
        let start = start.max(store_key(self.database, after));
        if start >= end {
            return Ok((Vec::new(), false));
        }
        let is_flushed = self.flushed.contains(&self.database);

        let loaded = Arc::clone(&self.loaded);
        let need = RangeNeed { from: start.clone(), to: end.clone(), limit };
        let (stored, more) = if is_flushed {
            (&[][..], false)
        } else {
            let Some(page) = loaded.ranges.get(&need) else {
                self.needs.ranges.insert(need);
                return Err(Stop::Missing);
            };
            (&page.keys[..], page.more)
        };
        for stored in stored {
            self.spend_bytes(stored.key.len())?;
        }

        // If the range has more, keys after the last one that was read are unknown.
        let read_to = match stored.last() {
            Some(last) if more => [&last.key[..], &[0]].concat(),
            _ => end,
        };
        if !is_flushed {
            self.ranges_read.insert((start.clone(), read_to.clone(), self.loaded.range_revision));
            self.seen.extend(stored.iter().map(|stored| (stored.key.clone(), stored.modified)));
        }

        let own = start..read_to;
        let own_work = self.slots.range(own.clone()).map(|(key, _)| 1 + key.len() / WORK_UNIT_BYTES).sum();
        self.spend(own_work)?;
        let mut seen: BTreeMap<&[u8], Option<DatumKind>> =
            stored.iter().map(|stored| (&stored.key[..], stored.kind)).collect();
        for (key, slot) in self.slots.range(own).filter(|(_, slot)| slot.change != SlotChange::None) {
            let kind = slot.kind()?;
            if kind.is_none() {
                seen.remove(&key[..]);
            } else {
                seen.insert(key, kind);
            }
        }

        let prefix_bytes = database_start(self.database).len();
        let seen = seen.into_iter().filter_map(|(key, kind)| {
            let key = key.get(prefix_bytes..)?.to_vec();
            Some(SeenKey { key, kind: kind? })
        });
        Ok((seen.collect(), more))
    }

    /// Number of keys of the selected database.
    ///
    /// A transaction cannot compare a number of keys. So a unit that writes runs once more, and counts the keys one by one
    /// ([`Self::has_uncompared_count`]).
    pub(crate) fn count_keys(&mut self) -> Result<u64, Stop> {
        if self.loaded.compares_counts {
            return self.count_compared_keys();
        }
        self.has_uncompared_count |= !self.flushed.contains(&self.database);
        let range = database_start(self.database)..database_end(self.database);
        let mut count = 0;
        if !self.flushed.contains(&self.database) {
            let Some(counted) = self.loaded.counts.get(&self.database) else {
                self.needs.counts.insert(self.database);
                return Err(Stop::Missing);
            };
            count = *counted;
        }

        for slot in self.slots.range(range).map(|(_, slot)| slot).filter(|slot| slot.change != SlotChange::None) {
            let before = slot.was_present();
            let after = slot.is_present();
            count = count.saturating_add(u64::from(after && !before)).saturating_sub(u64::from(before && !after));
        }
        Ok(count)
    }

    /// Number of keys of the selected database, each of which the transaction compares.
    fn count_compared_keys(&mut self) -> Result<u64, Stop> {
        let (seen, more) = self.keys(b"", b"", COMPARED_KEYS_MAX + 1)?;
        if more || seen.len() > COMPARED_KEYS_MAX {
            return Err(Stop::Over(format!(
                "ERR DBSIZE in a script or transaction that writes compares each key, at most {COMPARED_KEYS_MAX}, and the database has \
                 more: ask for it before"
            )));
        }
        Ok(seen.len() as u64)
    }

    /// Whether keys were counted, and the transaction would not notice that their number has changed.
    pub(crate) fn has_uncompared_count(&self) -> bool {
        self.has_uncompared_count
    }

    /// A cursor for the position of a scan, and the position of a cursor.
    pub(crate) fn cursors(&self) -> &Cursors {
        &self.cursors
    }

    /// Takes all that the view has written as one transaction. `holder` is the text that is shown for locks that it makes.
    pub(crate) fn into_txn(mut self, holder: &str) -> RedisTxn {
        let mut txn = RedisTxn::default();
        for database in self.flushed {
            let from = database_start(database);
            let to = database_end(database);
            txn.writes.push(RedisWrite::DeleteRange { from, to });
        }

        for (key, slot) in self.slots {
            if !slot.is_flushed {
                self.seen.insert((key.clone(), slot.revision()));
            }
            txn.writes.extend(slot.into_writes(key, holder));
        }

        let unwritten = |(from, to, revision)| RedisCondition::RangeUnwritten { from, to, revision };
        let modified = |(key, revision)| RedisCondition::Modified { key, revision };
        if Planted::ReadKeysNotCompared.is_on() {
            let is_written = |key: &Vec<u8>| {
                txn.writes.iter().any(|write| matches!(write, RedisWrite::Put { key: written, .. } if written == key))
            };
            self.seen.retain(|(key, _)| is_written(key));
            self.ranges_read.clear();
        }
        txn.conditions.extend(self.ranges_read.into_iter().map(unwritten));
        txn.conditions.extend(self.seen.into_iter().map(modified));
        txn
    }

    /// Decodes the value of a key, if that has not happened yet.
    fn datum(&mut self, key: &[u8]) -> Result<(), Stop> {
        let bytes = self.slot(key)?.bytes_to_decode();
        self.spend_bytes(bytes)?;
        self.slot(key)?.decode()
    }

    /// The slot of a key. From now on the unit depends on what the store has there.
    fn slot(&mut self, key: &[u8]) -> Result<&mut KeySlot, Stop> {
        let stored = store_key(self.database, key);
        let is_flushed = self.flushed.contains(&self.database);

        if !self.slots.contains_key(&stored) {
            let slot = if is_flushed {
                KeySlot::flushed()
            } else if let Some(entry) = self.loaded.entries.get(&stored) {
                KeySlot::new(entry.clone())
            } else {
                self.needs.keys.insert(stored);
                return Err(Stop::Missing);
            };
            self.slots.insert(stored.clone(), slot);
        }
        Ok(self.slots.get_mut(&stored).expect("it was inserted"))
    }
}

#[cfg(test)]
mod tests;
