//! A read of a range: which keys it shows, and in which order.

use std::{cmp::Ordering, sync::Arc};

use lockkeeper_machine::{
    Bounds, Entry, Key, KeyRange, Revision, Select, Selected, Shows, SortBy, TXN_READS_MAX, Value,
};
use lockkeeper_planted::Planted;

use crate::{
    Etcd, EtcdStore, EtcdStoreError,
    error::Error,
    header::{key_value, number},
    key,
    large::LargeAnswer,
    proto::{
        etcdserverpb::{
            RangeRequest, RangeResponse,
            range_request::{SortOrder, SortTarget},
        },
        mvccpb::KeyValue,
    },
};

/// Bytes of keys and values in one answer, at the most: an answer is sent whole.
pub(crate) const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Entries in all answers of one transaction, at the most: small ones take far more memory than their bytes.
const ANSWER_ENTRIES_MAX: usize = 16 * TXN_READS_MAX;
/// Entries that are kept beyond the limit before the surplus is sorted out.
const SURPLUS: usize = 1024;
/// Attempts to read a range whose revision is forgotten before all its pages are read.
const ATTEMPTS_MAX: usize = 4;

pub(crate) type FoundEntry = (Key, Arc<Entry>);

impl<S: EtcdStore> Etcd<S> {
    /// Answers a read. The header is left to the caller; also returns the present revision.
    pub(crate) async fn read(
        &self,
        caller: &S::Caller,
        request: &RangeRequest,
    ) -> Result<(RangeResponse, Revision), Error> {
        // A revision of 0, or below, asks for the present.
        let at = u64::try_from(request.revision).ok().filter(|revision| *revision > 0).map(Revision);
        self.read_at(&mut LargeAnswer::new(self, caller), request, at).await
    }

    /// Answers a read that may show an old state, from this node's copy: also without a leader, as etcd does. Returns `None` if the read
    /// must show the newest state, or is too large to be answered at once.
    pub(crate) async fn read_copy(
        &self,
        caller: &S::Caller,
        request: &RangeRequest,
    ) -> Result<Option<(RangeResponse, Revision)>, Error> {
        if !request.serializable || request.revision > 0 {
            return Ok(None);
        }
        match self.store.select_from_copy(caller, select(request)?).await {
            Ok((selected, revision)) => Ok(Some((answer(selected), revision))),
            Err(EtcdStoreError::TooLarge(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`read`](Self::read), at this revision, as a part of an answer.
    pub(crate) async fn read_at(
        &self,
        answered: &mut LargeAnswer<'_, S>,
        request: &RangeRequest,
        at: Option<Revision>,
    ) -> Result<(RangeResponse, Revision), Error> {
        let caller = answered.caller;
        // A single key is not selected from a range: its entry is there or not.
        if request.range_end.is_empty() {
            let mut view = RangeView::new(request);
            let key = key::from_wire(&request.key)?;
            let found = self.store.get(caller, vec![key.clone()], at).await?;
            view.add(found.entries.into_iter().flatten().map(|entry| (key.clone(), entry)))?;
            return Ok((view.answer(), found.revision));
        }

        match self.store.select(caller, select(request)?, at).await {
            Ok((selected, revision)) => return Ok((answer(selected), revision)),
            // Page by page, since there are too many entries, or too much to show.
            Err(EtcdStoreError::TooLarge(_)) => {}
            Err(error) => return Err(error.into()),
        }

        answered.take_turn().await?;
        let range = key::range(&request.key, &request.range_end)?;
        for _ in 0..ATTEMPTS_MAX {
            let mut view = RangeView::new(request);
            match self.scan(answered, range.clone(), at, |entries| view.add(entries)).await {
                // A read of the present begins again, at a later revision. One of the past cannot.
                Err(Error::Compacted) if at.is_none() => {}
                scanned => return Ok((view.answer(), scanned?)),
            }
        }
        // Each time the revision was forgotten before its last page: many write, and the client may ask again.
        Err(EtcdStoreError::Overloaded.into())
    }

    /// Shows all entries of a range to `add`, page by page, all of the same revision. Returns the present one.
    pub(crate) async fn scan(
        &self,
        answered: &mut LargeAnswer<'_, S>,
        range: KeyRange,
        at: Option<Revision>,
        mut add: impl FnMut(Vec<FoundEntry>) -> Result<(), Error> + Send,
    ) -> Result<Revision, Error> {
        let caller = answered.caller;
        // An empty range has an answer all the same: the present revision, or the error that the wanted one is not known.
        if range.is_empty() {
            return Ok(self.store.get(caller, Vec::new(), at).await?.revision);
        }

        let first = self.store.list(caller, range.clone(), 0, at).await?;
        let revision = first.revision;
        // The pages that follow are read as of the first one, so that all of them show one moment.
        let at = at.unwrap_or(revision);
        let mut page = first;
        loop {
            let last = page.entries.last().map(|(key, _)| key.clone()).filter(|_| page.more);
            add(page.entries)?;
            let Some(last) = last else { return Ok(revision) };
            answered.take_turn().await?;
            // No key lies between one and the same with a zero byte after it.
            let from = Key::new(&[last.as_bytes(), &[0]].concat()).map_err(|_| Error::TooLarge)?;
            let at = Some(at).filter(|_| !Planted::PagesOfSeveralRevisions.is_on());
            page = self.store.list(caller, KeyRange { from: Some(from), ..range.clone() }, 0, at).await?;
        }
    }

    /// All entries of a range, at a revision. They must fit into the room.
    pub(crate) async fn entries(
        &self,
        answered: &mut LargeAnswer<'_, S>,
        range: KeyRange,
        at: Revision,
        room: &mut AnswerRoom,
    ) -> Result<Vec<FoundEntry>, Error> {
        let mut all = Vec::new();
        let scanned = self.scan(answered, range, Some(at), |entries| {
            // Counted page by page: a range may have far more than an answer can.
            room.take_entries(&entries)?;
            all.extend(entries);
            Ok(())
        });

        scanned.await?;
        Ok(all)
    }
}

/// What several reads of one request may still have together.
pub(crate) struct AnswerRoom {
    entries_left: usize,
    bytes_left: usize,
}

impl AnswerRoom {
    /// The room for the entries that an answer shows.
    pub(crate) fn for_shown() -> Self {
        Self { entries_left: ANSWER_ENTRIES_MAX, bytes_left: ANSWER_BYTES_MAX }
    }

    /// The room for the entries from which one operation selects some.
    pub(crate) fn for_visited() -> Self {
        Self { entries_left: usize::MAX, bytes_left: ANSWER_BYTES_MAX }
    }

    /// The room for the entries that decide a transaction. It is the same as the store's own limit for compares.
    pub(crate) fn for_compared() -> Self {
        Self { entries_left: TXN_READS_MAX, bytes_left: ANSWER_BYTES_MAX }
    }

    /// Takes the room of an answer.
    pub(crate) fn take_answer(&mut self, answer: &RangeResponse) -> Result<(), Error> {
        self.take(answer.kvs.len(), answer.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum())
    }

    /// Takes the room of some entries.
    pub(crate) fn take_entries(&mut self, entries: &[FoundEntry]) -> Result<(), Error> {
        self.take(entries.len(), entries.iter().map(size).sum())
    }

    /// Takes the room of the entries of some keys.
    pub(crate) fn take_found(&mut self, entries: &[Option<Arc<Entry>>]) -> Result<(), Error> {
        let values = entries.iter().flatten().map(|entry| entry.value.as_bytes().len()).sum();
        self.take(entries.len(), values)
    }

    /// Takes the room of entries with these bytes. Fails if there is not enough.
    pub(crate) fn take(&mut self, entries: usize, bytes: usize) -> Result<(), Error> {
        let entries_left = self.entries_left.checked_sub(entries).ok_or_else(too_large)?;
        let bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(too_large)?;
        *self = Self { entries_left, bytes_left };
        Ok(())
    }
}

pub(crate) fn size((key, entry): &FoundEntry) -> usize {
    key.as_bytes().len() + entry.value.as_bytes().len()
}

fn without_value((key, entry): FoundEntry) -> FoundEntry {
    (key, Arc::new(Entry { value: Value::default(), ..Entry::clone(&entry) }))
}

fn too_large() -> Error {
    Error::AnswerTooLarge { bytes_max: ANSWER_BYTES_MAX }
}

/// What a read shows of a range: filtered, sorted and limited, as entry by entry comes.
pub(crate) struct RangeView<'a> {
    request: &'a RangeRequest,
    order: SortOrder,
    target: SortTarget,
    /// 0: none.
    limit: usize,
    count: i64,
    found: Vec<FoundEntry>,
    /// The bytes of the entries in `found`.
    bytes: usize,
    /// Whether the limit left some entries out.
    more: bool,
}

impl<'a> RangeView<'a> {
    pub(crate) fn new(request: &'a RangeRequest) -> Self {
        let (order, target) = order(request);
        let limit = usize::try_from(request.limit).unwrap_or_default();
        Self { request, order, target, limit, count: 0, found: Vec::new(), bytes: 0, more: false }
    }

    /// Takes more entries, in the order of their keys. Fails if the answer would be too large.
    pub(crate) fn add(&mut self, entries: impl IntoIterator<Item = FoundEntry>) -> Result<(), Error> {
        for found in entries {
            // The count covers the whole range, including entries that filters and the limit leave out.
            self.count += 1;
            if self.request.count_only || !self.shows(&found.1) {
                continue;
            }

            // Entries come in the order of their keys. If no other one is wanted, the first ones are the answer.
            if self.limit > 0 && self.order == SortOrder::None && self.found.len() >= self.limit {
                self.more = true;
                continue;
            }

            // A value that is not shown is kept only if it decides the order.
            let is_kept = !self.request.keys_only || self.target == SortTarget::Value;
            let found = if is_kept { found } else { without_value(found) };
            self.bytes += size(&found);
            self.found.push(found);

            // In another order a later entry may be among the first ones. To sort at each would be slow, and to keep all would take the
            // memory of the whole range.
            if self.limit > 0 && self.found.len() > self.limit + SURPLUS {
                self.cut();
            }

            // The surplus must not count: it is cut before an answer is called too large.
            if self.bytes > ANSWER_BYTES_MAX {
                self.cut();
                if self.bytes > ANSWER_BYTES_MAX {
                    return Err(too_large());
                }
            }
        }
        Ok(())
    }

    fn shows(&self, entry: &Entry) -> bool {
        let RangeRequest { min_mod_revision, max_mod_revision, min_create_revision, max_create_revision, .. } =
            *self.request;

        // A bound of 0 means that there is no bound.
        let within = |revision: Revision, least: i64, most: i64| {
            (least == 0 || number(revision) >= least) && (most == 0 || number(revision) <= most)
        };
        within(entry.modified, min_mod_revision, max_mod_revision)
            && within(entry.created, min_create_revision, max_create_revision)
    }

    /// Sorts what was found, and drops what the limit leaves out.
    fn cut(&mut self) {
        let target = self.target;
        let ascending = |(key, one): &FoundEntry, (other_key, other): &FoundEntry| match target {
            SortTarget::Key => key.cmp(other_key),
            SortTarget::Version => one.version.cmp(&other.version),
            SortTarget::Create => one.created.cmp(&other.created),
            SortTarget::Mod => one.modified.cmp(&other.modified),
            SortTarget::Value => one.value.cmp(&other.value),
        };

        // The sorts are stable: equal entries stay in the order of their keys.
        match self.order {
            SortOrder::None => {}
            SortOrder::Ascend => self.found.sort_by(ascending),
            SortOrder::Descend => self.found.sort_by(|one, other| Ordering::reverse(ascending(one, other))),
        }

        if self.limit > 0 && self.found.len() > self.limit {
            self.found.truncate(self.limit);
            self.more = true;
            self.bytes = self.found.iter().map(size).sum();
        }
    }

    /// The answer, without its header.
    pub(crate) fn answer(mut self) -> RangeResponse {
        self.cut();
        let keys_only = self.request.keys_only;
        let kvs = self.found.iter().map(|(key, entry)| {
            let shown = key_value(key, entry);
            if keys_only { KeyValue { value: Vec::new(), ..shown } } else { shown }
        });
        RangeResponse { header: None, kvs: kvs.collect(), more: self.more, count: self.count }
    }
}

/// The answer to a read, without its header.
pub(crate) fn answer(Selected { entries, count, more }: Selected) -> RangeResponse {
    RangeResponse {
        header: None,
        kvs: entries.iter().map(|(key, entry)| key_value(key, entry)).collect(),
        // A request for the count alone leaves nothing out.
        more: more && !entries.is_empty(),
        count: i64::try_from(count).unwrap_or(i64::MAX),
    }
}

/// A read, as the store has it.
pub(crate) fn select(request: &RangeRequest) -> Result<Select, Error> {
    let (order, target) = order(request);
    let revision = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0).map(Revision);

    Ok(Select {
        range: key::range(&request.key, &request.range_end)?,
        created: Bounds { min: revision(request.min_create_revision), max: revision(request.max_create_revision) },
        modified: Bounds { min: revision(request.min_mod_revision), max: revision(request.max_mod_revision) },
        by: match target {
            SortTarget::Key => SortBy::Key,
            SortTarget::Create => SortBy::Created,
            SortTarget::Mod => SortBy::Modified,
            SortTarget::Version => SortBy::Version,
            SortTarget::Value => SortBy::Value,
        },
        is_descending: order == SortOrder::Descend,
        limit: u32::try_from(request.limit.max(0)).unwrap_or(u32::MAX),
        shows: match (request.count_only, request.keys_only) {
            (true, _) => Shows::Count,
            (false, true) => Shows::Keys,
            (false, false) => Shows::Entries,
        },
    })
}

/// The order that a read asks for.
fn order(request: &RangeRequest) -> (SortOrder, SortTarget) {
    match (request.sort_order(), request.sort_target()) {
        // Keys come in this order.
        (SortOrder::Ascend, SortTarget::Key) => (SortOrder::None, SortTarget::Key),
        // Who names a target wants an order.
        (SortOrder::None, target) if target != SortTarget::Key => (SortOrder::Ascend, target),
        order => order,
    }
}
