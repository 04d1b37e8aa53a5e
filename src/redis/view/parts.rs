//! Single parts of structures: a field, a member, a score, an item, or their number.
//!
//! They are read where the entry lies, and only what is asked for is copied. A unit that asks a second time for the same key decodes it: a
//! script that reads each field of a hash would otherwise pass over the whole for each of them.

use std::{ops::Range, sync::Arc};

use super::{Stop, UnitView, slot::unreadable};
use crate::{
    RedisEntry,
    data::{
        HashFields, ListItems, PartFound, Score, SetMembers, SortedMembers, Structure, count_parts, find_item,
        find_named, score_in,
    },
};

impl UnitView {
    /// The value of a field of a hash. Fails on a value of another type.
    pub(crate) fn field(&mut self, key: &[u8], field: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        if let Some(entry) = self.undecoded::<HashFields>(key)? {
            let place = self.look(key, find_named(&entry.value, field))?;
            return self.copy_place(&entry, place);
        }
        let fields = self.read::<HashFields>(key)?;
        fields.get(field).map(|value| self.copy(value)).transpose()
    }

    /// The length of a field of a hash in bytes; `None` if there is no such field. Fails on a value of another type.
    pub(crate) fn field_length(&mut self, key: &[u8], field: &[u8]) -> Result<Option<usize>, Stop> {
        if let Some(entry) = self.undecoded::<HashFields>(key)? {
            return Ok(self.look(key, find_named(&entry.value, field))?.map(|place| place.len()));
        }
        Ok(self.read::<HashFields>(key)?.get(field).map(Vec::len))
    }

    /// Whether a set has a member. Fails on a value of another type.
    pub(crate) fn has_member(&mut self, key: &[u8], member: &[u8]) -> Result<bool, Stop> {
        if let Some(entry) = self.undecoded::<SetMembers>(key)? {
            return Ok(self.look(key, find_named(&entry.value, member))?.is_some());
        }
        Ok(self.read::<SetMembers>(key)?.contains(member))
    }

    /// The score of a member of a sorted set. Fails on a value of another type.
    pub(crate) fn score(&mut self, key: &[u8], member: &[u8]) -> Result<Option<Score>, Stop> {
        if let Some(entry) = self.undecoded::<SortedMembers>(key)? {
            let place = self.look(key, find_named(&entry.value, member))?;
            let bytes = place.and_then(|place| entry.value.get(place));
            return bytes.map(|bytes| score_in(bytes).ok_or_else(unreadable)).transpose();
        }
        Ok(self.read::<SortedMembers>(key)?.score(member))
    }

    /// The item of a list whose place is chosen by the length of the list. Fails on a value of another type.
    pub(crate) fn item(
        &mut self,
        key: &[u8],
        choose: impl FnOnce(usize) -> Option<usize>,
    ) -> Result<Option<Vec<u8>>, Stop> {
        if let Some(entry) = self.undecoded::<ListItems>(key)? {
            let length = self.count(key, &entry)?;
            let Some(place) = choose(length) else { return Ok(None) };
            let place = find_item(&entry.value, place).ok_or_else(unreadable)?.place;
            return self.copy_place(&entry, place);
        }

        let list = self.read::<ListItems>(key)?;
        let item = choose(list.len()).and_then(|place| list.get(place));
        item.map(|item| self.copy(item)).transpose()
    }

    /// The number of parts of a structure. Fails on a value of another type.
    pub(crate) fn part_count<T: Structure>(&mut self, key: &[u8]) -> Result<usize, Stop> {
        match self.undecoded::<T>(key)? {
            Some(entry) => self.count(key, &entry),
            None => Ok(self.read::<T>(key)?.part_count()),
        }
    }

    fn undecoded<T: Structure>(&mut self, key: &[u8]) -> Result<Option<Arc<RedisEntry>>, Stop> {
        self.slot(key)?.undecoded(T::KIND)
    }

    /// Pays for what was passed, and returns the place that was found.
    fn look(&mut self, key: &[u8], found: Option<PartFound>) -> Result<Option<Range<usize>>, Stop> {
        let PartFound { place, passed } = found.ok_or_else(unreadable)?;
        self.spend_bytes(passed)?;
        self.slot(key)?.note_passed(passed);
        Ok(place)
    }

    fn count(&mut self, key: &[u8], entry: &RedisEntry) -> Result<usize, Stop> {
        let bytes = entry.value.len();
        self.spend_bytes(bytes)?;
        self.slot(key)?.note_passed(bytes);
        count_parts(&entry.value).ok_or_else(unreadable)
    }

    fn copy_place(&mut self, entry: &RedisEntry, place: Option<Range<usize>>) -> Result<Option<Vec<u8>>, Stop> {
        let bytes = place.and_then(|place| entry.value.get(place));
        bytes.map(|bytes| self.copy(bytes)).transpose()
    }
}
