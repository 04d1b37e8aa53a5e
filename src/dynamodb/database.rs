//! The base of all operations: the schemas of tables, and reading a table together with items.
//!
//! A table is an entry. Its schema is cached with the entry's revision. An operation reads the table's entry together with its items, at
//! one revision, and starts again if the table is not the cached one. A write is committed only if the table is still the same, so no item
//! enters a table that is being deleted.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Notify;

use crate::{
    AttributeValue, DynamoCaller, DynamoEntry, DynamoOptions, DynamoStore, Item,
    decoded::{DecodedCharge, decoded_bytes},
    error::{Error, ErrorType, Result},
    item::{ItemRecord, RequestMark},
    key,
    large_work::LargeWork,
    lock_name::lock_name,
    recipes,
    schema::{Attribute, TableProperties},
    turns::WriterTurns,
};

/// Maximum number of cached schemas. Beyond it, all are dropped, and read again when they are used.
const SCHEMAS_MAX: usize = 1024;
/// Maximum number of times that an operation starts again because others have changed what it read.
pub(crate) const TRIES: usize = 64;
/// Maximum number of bytes of an item.
pub(crate) const ITEM_BYTES_MAX: usize = 400 << 10;
const PARTITION_BYTES_MAX: usize = 2048;
const SORT_BYTES_MAX: usize = 1024;

/// The tables and items of a store.
#[derive(Debug)]
pub(crate) struct Database<S> {
    pub(crate) store: S,
    pub(crate) options: DynamoOptions,
    schemas: Mutex<HashMap<String, Arc<CachedTable>>>,
    /// The order of the writers of each item.
    pub(crate) turns: WriterTurns,
    /// The turns of the requests that decode much.
    pub(crate) large_work: LargeWork,
    /// Notified when a table was deleted, so that its items are removed.
    pub(crate) dropped: Notify,
}

/// A table as its entry was read last.
#[derive(Debug)]
pub(crate) struct CachedTable {
    pub(crate) table: TableProperties,
    /// The revision of its creation. No two tables of one name have the same.
    pub(crate) created: u64,
    pub(crate) modified: u64,
}

/// A request for an item.
pub(crate) struct ItemRequest<'a> {
    pub(crate) table: &'a str,
    pub(crate) attributes: &'a Item,
    /// Whether the attributes are the key and nothing else. Otherwise they are a whole item.
    pub(crate) is_key: bool,
}

/// An item as the store has it, with its table.
pub(crate) struct StoredItem {
    pub(crate) known: Arc<CachedTable>,
    pub(crate) key: Vec<u8>,
    pub(crate) stored: Option<(ItemRecord, DynamoEntry)>,
    /// The item as the client sees it: see `recipes`.
    pub(crate) shown: Option<Item>,
    /// The memory of both.
    pub(crate) decoded: Option<DecodedCharge>,
}

/// An item as it lies in the store, with its table: it is not decoded, and takes no memory beyond its bytes.
pub(crate) struct UndecodedItem {
    pub(crate) known: Arc<CachedTable>,
    pub(crate) key: Vec<u8>,
    pub(crate) entry: Option<DynamoEntry>,
}

impl UndecodedItem {
    /// Its size in the store.
    pub(crate) fn bytes(&self) -> usize {
        self.entry.as_ref().map_or(0, |entry| entry.value.len())
    }
}

impl StoredItem {
    /// Whether the item is as the request with this mark left it, and what the request acquired is not over.
    pub(crate) fn is_as_left_by(&self, mark: RequestMark) -> bool {
        let stored = self.stored.as_ref().filter(|(_, entry)| !entry.expired);
        stored.is_some_and(|(record, _)| record.mark == Some(mark))
    }

    /// The revision that the entry must have for a write to be right.
    pub(crate) fn modified(&self) -> u64 {
        self.stored.as_ref().map_or(0, |(_, entry)| entry.modified)
    }
}

impl<S: DynamoStore> Database<S> {
    pub(crate) fn new(store: S, options: DynamoOptions) -> Self {
        let large_work = LargeWork::new(options.large_at_once);
        let schemas = Mutex::default();
        Self { store, options, schemas, turns: WriterTurns::default(), large_work, dropped: Notify::default() }
    }

    /// Reads a table as it is now.
    pub(crate) async fn table(&self, caller: &DynamoCaller, name: &str) -> Result<Arc<CachedTable>> {
        let mut found = self.store.get(caller, vec![key::table_key(name)]).await?;
        self.learn(name, found.pop().flatten().as_ref())
    }

    /// Reads tables and items at one revision, and the values of some further keys.
    pub(crate) async fn locate(
        &self,
        caller: &DynamoCaller,
        wanted: &[ItemRequest<'_>],
        further: &[Vec<u8>],
    ) -> Result<(Vec<StoredItem>, Vec<Option<DynamoEntry>>)> {
        let (undecoded, further) = self.find(caller, wanted, further).await?;
        let _turn = self.large_work.turn(undecoded.iter().map(UndecodedItem::bytes).sum()).await;
        let located = undecoded.into_iter().map(|item| self.located(caller, item));
        Ok((located.collect::<Result<_>>()?, further))
    }

    /// Reads the same, and leaves the items as they lie in the store. They take no more memory than that.
    pub(crate) async fn find(
        &self,
        caller: &DynamoCaller,
        wanted: &[ItemRequest<'_>],
        further: &[Vec<u8>],
    ) -> Result<(Vec<UndecodedItem>, Vec<Option<DynamoEntry>>)> {
        let names: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.table).collect();
        let mut known = BTreeMap::new();
        for name in &names {
            let cached = self.schemas().get(*name).map(Arc::clone);
            let table = match cached {
                Some(table) => table,
                None => self.table(caller, name).await?,
            };
            known.insert(*name, table);
        }

        for _ in 0..TRIES {
            let item_keys: Result<Vec<_>> = wanted.iter().map(|wanted| known[wanted.table].key_of(wanted)).collect();
            // An item that does not fit the cached schema may fit the present one.
            let item_keys_or_none = item_keys.as_ref().map(Vec::as_slice).unwrap_or_default();
            let of_tables = names.iter().map(|name| key::table_key(name));
            let keys: Vec<_> =
                of_tables.chain(item_keys_or_none.iter().cloned()).chain(further.iter().cloned()).collect();

            let count = keys.len();
            let mut entries = self.store.get(caller, keys).await?;
            if entries.len() != count {
                let problem = format!("the store answered with {} entries for {count} keys", entries.len());
                return Err(Error::new(ErrorType::InternalServerError, problem));
            }

            let mut same = true;
            for (name, entry) in names.iter().zip(entries.drain(..names.len())) {
                if entry.as_ref().is_none_or(|entry| entry.modified != known[name].modified) {
                    known.insert(name, self.learn(name, entry.as_ref())?);
                    same = false;
                }
            }

            if !same {
                continue;
            }

            let item_keys = item_keys?;
            let further = entries.split_off(item_keys.len());
            let found = wanted.iter().zip(item_keys).zip(entries);
            let undecoded = found.map(|((wanted, key), entry)| {
                let known = Arc::clone(&known[wanted.table]);
                UndecodedItem { known, key, entry }
            });
            return Ok((undecoded.collect(), further));
        }
        Err(Error::new(ErrorType::Throttled, "the tables of this request change too often: try again"))
    }

    /// Decodes an entry. Fails also if the caller has no room for the item.
    pub(crate) fn located(&self, caller: &DynamoCaller, item: UndecodedItem) -> Result<StoredItem> {
        let UndecodedItem { known, key, entry } = item;
        let Some(mut entry) = entry else {
            return Ok(StoredItem { known, key, stored: None, shown: None, decoded: None });
        };
        let record = ItemRecord::decode(&std::mem::take(&mut entry.value))
            .map_err(|error| Error::new(ErrorType::InternalServerError, error.to_string()))?;
        // What is shown is a copy.
        let decoded = caller.decoded.charge(2 * decoded_bytes(&record.item))?;
        let shown = recipes::shown(&record, &entry, self.options.rules(&known.table));
        Ok(StoredItem { known, key, stored: Some((record, entry)), shown: Some(shown), decoded: Some(decoded) })
    }

    /// Caches the schema that a table's entry has.
    fn learn(&self, name: &str, entry: Option<&DynamoEntry>) -> Result<Arc<CachedTable>> {
        let table = entry.map(|entry| TableProperties::decode(&entry.value)).transpose()?;
        let mut schemas = self.schemas();
        let Some((table, entry)) = table.filter(|table| !table.is_dropped).zip(entry) else {
            schemas.remove(name);
            return Err(Error::no_table());
        };

        let known = Arc::new(CachedTable { table, created: entry.created, modified: entry.modified });
        if schemas.len() >= SCHEMAS_MAX {
            schemas.clear();
        }
        schemas.insert(name.to_owned(), Arc::clone(&known));

        Ok(known)
    }

    fn schemas(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<CachedTable>>> {
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedTable {
    /// The first part of the keys of its items.
    pub(crate) fn items(&self) -> Vec<u8> {
        key::items_prefix(&self.table.name, self.created)
    }

    /// Returns the key attributes of an item.
    pub(crate) fn key_attributes(&self, item: &Item) -> Item {
        let names = self.table.key_names();
        names.filter_map(|name| Some((name.to_owned(), item.get(name)?.clone()))).collect()
    }

    /// Returns the name of an item that is a lock, as a text for people.
    pub(crate) fn lock_name(&self, attributes: &Item) -> String {
        let TableProperties { name, partition, sort, .. } = &self.table;
        let part = |attribute: &Attribute| attributes.get(&attribute.name).unwrap_or(&AttributeValue::Null);
        lock_name(name, part(partition), sort.as_ref().map(part))
    }

    pub(crate) fn key_of(&self, wanted: &ItemRequest<'_>) -> Result<Vec<u8>> {
        let TableProperties { partition, sort, .. } = &self.table;
        if wanted.is_key && wanted.attributes.len() != 1 + usize::from(sort.is_some()) {
            return Err(Error::validation("The provided key element does not match the schema"));
        }
        let of_partition = key_attribute(wanted, partition, PARTITION_BYTES_MAX)?;
        let of_sort = sort.as_ref().map(|sort| key_attribute(wanted, sort, SORT_BYTES_MAX)).transpose()?;
        Ok(key::item_key(&self.items(), of_partition, of_sort))
    }
}

fn key_attribute<'a>(wanted: &ItemRequest<'a>, attribute: &Attribute, bytes_max: usize) -> Result<&'a AttributeValue> {
    let Attribute { name, kind } = attribute;
    let value = match wanted.attributes.get(name) {
        Some(value) if value.kind() == kind => value,
        _ if wanted.is_key => {
            return Err(Error::validation("The provided key element does not match the schema"));
        }
        None => return Err(Error::parameters(format!("Missing the key {name} in the item"))),
        Some(value) => {
            let actual = value.kind();
            return Err(Error::parameters(format!("Type mismatch for key {name} expected: {kind} actual: {actual}")));
        }
    };

    check_key_value(name, value, bytes_max == PARTITION_BYTES_MAX)?;
    Ok(value)
}

/// Checks that a key is neither empty nor too long.
pub(crate) fn check_key_value(name: &str, value: &AttributeValue, is_partition: bool) -> Result<()> {
    if value.size() == 0 {
        let kind = if value.as_str().is_some() { "string" } else { "binary" };
        return Err(Error::validation(format!(
            "One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain an \
             empty {kind} value. Key: {name}"
        )));
    }

    if is_partition && value.size() > PARTITION_BYTES_MAX {
        return Err(Error::parameters(format!(
            "Size of hashkey has exceeded the maximum size limit of{PARTITION_BYTES_MAX} bytes"
        )));
    } else if !is_partition && value.size() > SORT_BYTES_MAX {
        return Err(Error::parameters(format!(
            "Aggregated size of all range keys has exceeded the size limit of {SORT_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}
