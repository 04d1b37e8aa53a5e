//! Names in the order in which they came, each with what belongs to it: the fields of a hash, the members of a set.

use std::collections::BTreeMap;

/// Fields and their values, or members without.
#[derive(Clone, Debug)]
pub(crate) struct OrderedFields<V> {
    /// The fields, each with its place in the order.
    fields: BTreeMap<Vec<u8>, (u64, V)>,
    /// The names by their places.
    order: BTreeMap<u64, Vec<u8>>,
    /// The place of the next name.
    next: u64,
}

impl<V> Default for OrderedFields<V> {
    fn default() -> Self {
        Self { fields: BTreeMap::new(), order: BTreeMap::new(), next: 0 }
    }
}

impl<V: PartialEq> PartialEq for OrderedFields<V> {
    fn eq(&self, other: &Self) -> bool {
        self.in_order().eq(other.in_order())
    }
}

impl<V> OrderedFields<V> {
    /// Number of fields.
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// The value of a field, if it is there.
    pub(crate) fn get(&self, field: &[u8]) -> Option<&V> {
        self.fields.get(field).map(|(_, value)| value)
    }

    /// Whether a field is there.
    pub(crate) fn contains(&self, field: &[u8]) -> bool {
        self.fields.contains_key(field)
    }

    /// Sets a field, and returns whether it is a new one. One that is there keeps its place.
    pub(crate) fn set(&mut self, field: &[u8], value: V) -> bool {
        if let Some((_, present)) = self.fields.get_mut(field) {
            *present = value;
            return false;
        }
        self.fields.insert(field.to_vec(), (self.next, value));
        self.order.insert(self.next, field.to_vec());
        self.next += 1;
        true
    }

    /// Removes a field, and returns whether it was there.
    pub(crate) fn remove(&mut self, field: &[u8]) -> bool {
        let removed = self.fields.remove(field);
        if let Some((place, _)) = &removed {
            self.order.remove(place);
        }
        removed.is_some()
    }

    /// All fields, in their order.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (&Vec<u8>, &V)> {
        self.order.values().filter_map(|field| self.fields.get(field).map(|(_, value)| (field, value)))
    }
}
