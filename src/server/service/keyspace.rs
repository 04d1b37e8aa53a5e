//! How a node executes requests of the keyspace.
//!
//! Reads are linearizable, from a clone of the table: pages of hundreds of entries do not delay applying. A page ends with the entry that
//! reaches [`PAGE_BYTES`], so it fits into a message between nodes; the next one may show a later revision.

use std::{iter::from_fn, sync::Arc};

use super::local::{Local, Serve, page_size};
use crate::{
    api::{Caller, Error, requests::*},
    wire::{Form, MESSAGE_BYTES_MAX},
};
use lockkeeper_machine::{
    Command, Committed, Entry, KEY_BYTES_MAX, Key, Limit, Refusal, Reply, TXN_BYTES_MAX, TXN_READS_MAX, Txn,
    VALUE_BYTES_MAX,
};

/// Entries in one page, at the most.
const PAGE_MAX: usize = 1000;
/// Bytes after which a page is closed.
const PAGE_BYTES: usize = 1024 * 1024;
/// What an entry takes in a message beside its key and value, at the most.
const FIXED_BYTES: usize = 128;
const _: () = assert!(PAGE_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX + FIXED_BYTES < MESSAGE_BYTES_MAX);
const _: () = assert!(TXN_BYTES_MAX + 3 * lockkeeper_machine::TXN_OPERATIONS_MAX * FIXED_BYTES < MESSAGE_BYTES_MAX);

impl Serve for Txn {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<Committed>, Error> {
        let txn = self.opened_by(caller.remote, caller.identity.as_ref());
        let reply = node.apply(Command::Txn(txn)).await?;
        let Reply::Committed(committed) = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(committed))
    }
}

impl Serve for GetEntries {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<EntriesFound>, Error> {
        let (machine, _) = node.frozen(false).await?;
        let at = self.at.unwrap_or_else(|| machine.revision());
        machine.ensure_known(at).map_err(Error::revision)?;
        let mut page = Page::of(PAGE_MAX);
        let mut entries = Vec::new();
        for key in self.keys {
            let entry = machine.entry_at(&key, at).map_err(Error::revision)?;
            page.add(&key, entry.as_deref());
            entries.push(entry);
            if page.is_full() {
                break;
            }
        }
        Ok(Form::Typed(EntriesFound { entries, revision: machine.revision() }))
    }
}

impl Serve for ListEntries {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<EntryPage>, Error> {
        let (machine, _) = node.frozen(false).await?;
        let mut page = Page::of(page_size(self.page_size, PAGE_MAX));
        let revision = machine.revision();
        let (entries, more) = match (self.leased_by, self.at) {
            (None, at) => {
                let range = machine.entries_at(&self.range, at.unwrap_or(revision)).map_err(Error::revision)?;
                page.fill(range.iter(self.backwards))
            }
            (Some(session), None) => {
                let mut leased = machine.entries_leased_by(session, &self.range);
                page.fill(from_fn(|| if self.backwards { leased.next_back() } else { leased.next() }))
            }
            (Some(_), Some(_)) => {
                return Err(Error::invalid(
                    "at_revision",
                    "entries of a lease are shown as they are now; leave it out",
                ));
            }
        };
        Ok(Form::Typed(EntryPage { entries, more, revision }))
    }
}

impl Serve for SelectEntries {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<EntriesSelected>, Error> {
        let Self { select, at } = self;
        let (machine, _) = node.frozen(false).await?;
        let at = at.unwrap_or_else(|| machine.revision());
        let range = machine.entries_at(&select.range, at).map_err(Error::revision)?;
        let entries: Vec<_> = range.iter(false).take(TXN_READS_MAX + 1).collect();
        if entries.len() > TXN_READS_MAX {
            return Err(Error::refused(Refusal::Limit(Limit::TxnReads)));
        }
        let selected = select.from(entries.into_iter());
        if selected.bytes() + selected.entries.len() * FIXED_BYTES > PAGE_BYTES {
            return Err(Error::refused(Refusal::Limit(Limit::TxnBytes)));
        }
        Ok(Form::Typed(EntriesSelected { selected, revision: machine.revision() }))
    }
}

impl Serve for CompactEntries {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<EntriesCompacted>, Error> {
        let Self { revision } = self;
        tracing::info!(revision = revision.0, from = %caller.shown(), "asked to compact the history of the keyspace");
        let reply = node.apply(Command::Compact { revision }).await?;
        let Reply::Compacted(revision) = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(EntriesCompacted { revision }))
    }
}

/// How much more fits into a page.
struct Page {
    entries_left: usize,
    bytes_left: usize,
}

impl Page {
    fn of(entries: usize) -> Self {
        Self { entries_left: entries, bytes_left: PAGE_BYTES }
    }

    fn add(&mut self, key: &Key, entry: Option<&Entry>) {
        let value = entry.map_or(0, |entry| entry.value.as_bytes().len());
        self.entries_left = self.entries_left.saturating_sub(1);
        self.bytes_left = self.bytes_left.saturating_sub(FIXED_BYTES + key.as_bytes().len() + value);
    }

    /// The first entries, and whether there are more.
    fn fill<'a>(&mut self, mut all: impl Iterator<Item = (&'a Key, Arc<Entry>)>) -> (Vec<(Key, Arc<Entry>)>, bool) {
        let mut entries = Vec::new();
        while !self.is_full()
            && let Some((key, entry)) = all.next()
        {
            self.add(key, Some(&entry));
            entries.push((key.clone(), entry));
        }
        (entries, self.is_full() && all.next().is_some())
    }

    fn is_full(&self) -> bool {
        self.entries_left == 0 || self.bytes_left == 0
    }
}
