//! One key of a view: what is stored, and what the unit makes of it.

use std::sync::Arc;

use lockkeeper_planted::Planted;

use super::Stop;
use crate::{
    Expiry, LockClaim, RedisEntry, RedisWrite,
    data::{Datum, DatumKind, text_in_entry},
    key::lock_name,
};

/// How long a key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Until it is deleted.
    Endless,
    /// Milliseconds from now.
    Ms(u64),
}

/// The token of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockToken {
    /// A revision that is known.
    Committed(u64),
    /// The revision that the unit gets when it is committed.
    Own,
}

/// A key, as the commands before left it.
#[derive(Clone, Debug)]
pub(super) struct KeySlot {
    /// What the store has.
    stored: Option<Arc<RedisEntry>>,
    /// The value now.
    current: SlotValue,
    /// The deadline now, in the words of a write.
    expiry: Expiry,
    /// The change to write.
    pub(super) change: SlotChange,
    /// Whether a command decided by its absence.
    pub(super) is_decided: bool,
    /// Number of stored bytes that a command has passed over without decoding them, and paid for.
    passed: usize,
    /// Whether a command has removed it.
    was_deleted: bool,
    /// Whether its database was emptied before it was asked for. Then what the store has is of no interest.
    pub(super) is_flushed: bool,
}

/// The value of a key.
#[derive(Clone, Debug)]
enum SlotValue {
    /// The stored bytes, not decoded yet.
    Stored,
    /// The key has no value.
    Absent,
    /// Decoded, or made by a command.
    Known(Datum),
}

/// What the unit does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotChange {
    /// No change.
    None,
    /// It gets a value.
    Put,
    /// It gets another deadline, and keeps its value.
    Expire,
    /// It is removed.
    Delete,
}

impl KeySlot {
    /// Makes the slot of a key as it is stored.
    pub(super) fn new(stored: Option<Arc<RedisEntry>>) -> Self {
        let current = if stored.is_some() { SlotValue::Stored } else { SlotValue::Absent };
        Self {
            stored,
            current,
            expiry: Expiry::Kept,
            change: SlotChange::None,
            is_decided: false,
            passed: 0,
            was_deleted: false,
            is_flushed: false,
        }
    }

    /// Makes the slot of a key whose database was emptied.
    pub(super) fn flushed() -> Self {
        Self { is_flushed: true, ..Self::new(None) }
    }

    /// Whether the store has it.
    pub(super) fn was_present(&self) -> bool {
        self.stored.is_some()
    }

    /// Whether it is there now.
    pub(super) fn is_present(&self) -> bool {
        !matches!(self.current, SlotValue::Absent)
    }

    /// The revision of the stored entry, and 0 if there is none.
    pub(super) fn revision(&self) -> u64 {
        self.stored.as_ref().map_or(0, |entry| entry.modified)
    }

    /// The token of the lock that the key is, once the unit is committed.
    pub(super) fn token(&self, key: &[u8]) -> Option<LockToken> {
        if !self.is_present() {
            return None;
        }
        let Some(stored) = &self.stored else { return Some(LockToken::Own) };
        if let (SlotChange::Put, SlotValue::Known(datum)) = (self.change, &self.current)
            && matches!(self.claim(key, &datum.encode(), ""), LockClaim::New { .. })
        {
            return Some(LockToken::Own);
        }
        Some(LockToken::Committed(stored.token.unwrap_or(stored.created)))
    }

    /// The type of its value, which needs no decoding.
    pub(super) fn kind(&self) -> Result<Option<DatumKind>, Stop> {
        match &self.current {
            SlotValue::Absent => Ok(None),
            SlotValue::Known(datum) => Ok(Some(datum.kind())),
            SlotValue::Stored => {
                let bytes = self.stored.as_ref().map_or(&[][..], |entry| &entry.value);
                DatumKind::from_entry(bytes).map(Some).ok_or_else(unreadable)
            }
        }
    }

    /// The string of the key where it lies, neither decoded nor copied. Fails on a value of another type.
    pub(super) fn text(&self) -> Result<Option<&[u8]>, Stop> {
        match self.kind()? {
            None => return Ok(None),
            Some(DatumKind::Text) => {}
            Some(DatumKind::List | DatumKind::Hash | DatumKind::Set | DatumKind::Sorted) => {
                return Err(Stop::wrong_type());
            }
        }
        if let SlotValue::Known(Datum::Text(text)) = &self.current {
            return Ok(Some(text));
        }
        Ok(self.stored.as_ref().and_then(|entry| text_in_entry(&entry.value)))
    }

    /// The entry of a structure of this type that is not decoded, for a question that is answered where it lies. `None` if the value is
    /// absent or decoded, or if one question was answered so: a unit that asks again and again decodes it once. Fails on a value of
    /// another type.
    pub(super) fn undecoded(&self, kind: DatumKind) -> Result<Option<Arc<RedisEntry>>, Stop> {
        match self.kind()? {
            None => Ok(None),
            Some(own) if own != kind => Err(Stop::wrong_type()),
            Some(_) => {
                let is_first = matches!(self.current, SlotValue::Stored) && self.passed == 0;
                Ok(self.stored.clone().filter(|_| is_first))
            }
        }
    }

    /// Notes that the answer to a question has passed over these stored bytes.
    pub(super) fn note_passed(&mut self, bytes: usize) {
        self.passed = bytes;
    }

    /// Number of bytes that [`decode`](Self::decode) reads and that are not paid for.
    pub(super) fn bytes_to_decode(&self) -> usize {
        match (&self.current, &self.stored) {
            (SlotValue::Stored, Some(stored)) => stored.value.len().saturating_sub(self.passed),
            _ => 0,
        }
    }

    /// Decodes the stored value, if that has not happened yet.
    pub(super) fn decode(&mut self) -> Result<(), Stop> {
        if let (SlotValue::Stored, Some(stored)) = (&self.current, &self.stored) {
            self.current = SlotValue::Known(Datum::decode(&stored.value).ok_or_else(unreadable)?);
        }
        Ok(())
    }

    /// The value, once it is decoded.
    pub(super) fn datum(&self) -> Option<&Datum> {
        if let SlotValue::Known(datum) = &self.current { Some(datum) } else { None }
    }

    /// Forgets the value, which is put back changed.
    pub(super) fn forget_datum(&mut self) {
        self.current = SlotValue::Absent;
    }

    /// Gives the key a value. Without a life, it keeps the one that it has.
    pub(super) fn put(&mut self, datum: Datum, life: Option<Life>) {
        let was_deleted = self.change == SlotChange::Delete;
        self.current = SlotValue::Known(datum);
        self.change = SlotChange::Put;
        match life {
            Some(life) => self.expiry = life.expiry(),
            // A key that was deleted before begins anew.
            None if was_deleted => self.expiry = Expiry::None,
            None => {}
        }
    }

    /// Removes the key.
    pub(super) fn delete(&mut self) {
        self.current = SlotValue::Absent;
        self.expiry = Expiry::None;
        self.was_deleted = true;
        let is_stored = self.stored.is_some();
        self.change = if is_stored { SlotChange::Delete } else { SlotChange::None };
    }

    /// How long the key still lives.
    pub(super) fn life(&self, now_ms: u64) -> Life {
        let deadline_ms = match self.expiry {
            Expiry::None => None,
            Expiry::AfterMs(ms) => return Life::Ms(ms),
            Expiry::AtMs(deadline_ms) => Some(deadline_ms),
            Expiry::Kept => self.stored.as_ref().and_then(|entry| entry.deadline_ms),
        };
        deadline_ms.map_or(Life::Endless, |deadline_ms| Life::Ms(deadline_ms.saturating_sub(now_ms)))
    }

    /// Gives the key another life from now on.
    pub(super) fn set_life(&mut self, life: Life) {
        self.set_expiry(life.expiry());
    }

    /// The deadline of the key, in a form that another key can have.
    pub(super) fn expiry(&self) -> Expiry {
        match self.expiry {
            Expiry::Kept => {
                let deadline_ms = self.stored.as_ref().and_then(|entry| entry.deadline_ms);
                deadline_ms.map_or(Expiry::None, Expiry::AtMs)
            }
            own @ (Expiry::None | Expiry::AfterMs(_) | Expiry::AtMs(_)) => own,
        }
    }

    /// Gives the key another deadline.
    pub(super) fn set_expiry(&mut self, expiry: Expiry) {
        self.expiry = expiry;
        if self.change == SlotChange::None {
            self.change = SlotChange::Expire;
        }
    }

    /// The writes that make the store as this key is now, if it differs.
    pub(super) fn into_writes(self, key: Vec<u8>, holder: &str) -> Vec<RedisWrite> {
        match self.change {
            SlotChange::None => Vec::new(),
            SlotChange::Delete => vec![RedisWrite::Delete { key }],
            SlotChange::Expire => vec![RedisWrite::Expire { key, expiry: self.expiry }],
            SlotChange::Put => {
                let SlotValue::Known(datum) = &self.current else { return Vec::new() };
                let value = datum.encode();
                let claim = self.claim(&key, &value, holder);

                // An entry that is written again for the same lock keeps its claim, and with it the token of the holder before.
                let begins_anew = matches!(claim, LockClaim::New { .. }) && self.was_present();
                if begins_anew && !Planted::RedisHandOverKeepsToken.is_on() {
                    let expiry = self.expiry();
                    return vec![
                        RedisWrite::Delete { key: key.clone() },
                        RedisWrite::Put { key, value, expiry, claim },
                    ];
                }
                vec![RedisWrite::Put { key, value, expiry: self.expiry, claim }]
            }
        }
    }

    /// The lock that the key is after this write: a string with a deadline that was created because it was absent. As long as its value
    /// stays, it is the same lock; another value is another holder.
    fn claim(&self, key: &[u8], value: &[u8], holder: &str) -> LockClaim {
        let is_text = text_in_entry(value).is_some();
        let has_deadline = match self.expiry {
            Expiry::None => false,
            Expiry::AfterMs(_) | Expiry::AtMs(_) => true,
            Expiry::Kept => self.stored.as_ref().is_some_and(|entry| entry.deadline_ms.is_some()),
        };
        let new = || LockClaim::New { name: lock_name(key), holder: holder.to_owned() };

        let stored = self.stored.as_ref().filter(|_| !self.was_deleted);
        match stored {
            _ if !is_text => LockClaim::None,
            None if self.is_decided && has_deadline => new(),
            Some(stored) if stored.token.is_some() && stored.value == value => LockClaim::Kept,
            Some(stored) if stored.token.is_some() && has_deadline => new(),
            None | Some(_) => LockClaim::None,
        }
    }
}

impl Life {
    /// The life in the words of a write.
    fn expiry(self) -> Expiry {
        match self {
            Self::Endless => Expiry::None,
            Self::Ms(ms) => Expiry::AfterMs(ms.max(1)),
        }
    }
}

/// The error for an entry that a later version has written.
pub(super) fn unreadable() -> Stop {
    Stop::refused("ERR the entry of this key has a form that this version cannot read: upgrade this node first")
}
