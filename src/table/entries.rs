//! Applies one entry of the log, whatever it holds.
//!
//! An entry that cannot be decoded, or needs a later program, stops the table before it: see the module `unapplied`. An entry that is
//! skipped would make this table differ from those of the other nodes.

use std::io;

use bytes::Bytes;

use crate::{
    AppliedMembership, Batch, EntryId, Table,
    codec::commands,
    replies::Deliveries,
    unapplied::{self, advice},
};

/// What an entry holds.
#[derive(Debug)]
pub enum EntryContent {
    /// An empty entry. A new leader begins its term with it.
    Blank,
    /// The members from this entry on.
    Membership(AppliedMembership),
    /// Commands that were proposed together.
    Batch(Batch),
}

impl EntryContent {
    /// Reads the payload of an entry, which is a batch of commands. Fails with the entry, why it cannot be read, and what to do.
    pub fn decode(entry: EntryId, payload: &Bytes) -> io::Result<Self> {
        let (time, limits, commands) =
            commands::decode(payload).map_err(|malformed| damaged(entry, &malformed.to_string()))?;
        Ok(Self::Batch(Batch { time, limits, commands }))
    }
}

impl Table {
    /// Applies one entry. With `answer`, this node proposed it, and its proposer waits for the deliveries.
    ///
    /// Fails if the content could not be read, or if this program does not support all its commands. Nothing of the entry is applied then,
    /// and the table notes why ([`Table::unapplied`]): no later entry may be applied.
    pub fn apply_entry(
        &self,
        entry: EntryId,
        content: io::Result<EntryContent>,
        answer: bool,
    ) -> io::Result<Deliveries> {
        // Check before any of its commands is applied: a skipped command would make this table differ from the others.
        let content = content.and_then(|content| self.ensure_supported(entry, content));

        match content.inspect_err(|error| self.note_unapplied(error))? {
            EntryContent::Blank => self.pass(entry, None),
            EntryContent::Membership(membership) => self.pass(entry, Some(membership)),
            EntryContent::Batch(batch) => {
                unapplied::begin(entry, batch.commands.len());
                let deliveries = self.apply(entry, batch, answer);
                unapplied::end();
                return Ok(deliveries);
            }
        }

        Ok(Deliveries::default())
    }

    /// Fails on a batch of which this program cannot apply all commands.
    fn ensure_supported(&self, entry: EntryId, content: EntryContent) -> io::Result<EntryContent> {
        let EntryContent::Batch(batch) = &content else { return Ok(content) };
        self.versions().check_commands(&batch.commands).map_err(|error| {
            let advice = advice(entry.index);
            io::Error::new(error.kind(), format!("log entry {entry} cannot be applied: {error}; {advice}"))
        })?;
        Ok(content)
    }
}

fn damaged(entry: EntryId, why: &str) -> io::Error {
    let advice = advice(entry.index);
    let message = format!(
        "log entry {entry} cannot be decoded ({why}): it is damaged or was written by a newer version; install that version; {advice}"
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{self, AssertUnwindSafe},
        sync::Arc,
    };

    use super::*;
    use crate::{Applied, Inspect};
    use lockkeeper_machine::{Command, Label, Limits, Revision, SessionId, Time, Ttl};

    fn id(index: u64) -> EntryId {
        EntryId { term: 1, index }
    }

    fn apply(table: &Table, index: u64, payload: &Bytes) -> io::Result<Deliveries> {
        table.apply_entry(id(index), EntryContent::decode(id(index), payload), false)
    }

    fn batch(commands: &[Command]) -> Bytes {
        commands::encode(Time::default(), Limits::default(), commands)
    }

    #[test]
    fn an_entry_that_cannot_be_applied_names_itself_and_changes_nothing() {
        let table = Table::new(None);
        apply(&table, 1, &batch(&[Command::Tick])).expect("applied");
        assert_eq!(table.unapplied(), None);

        let open = |session| {
            let ttl = Ttl::from_millis(1000).expect("in bounds");
            let label = Label::default();
            Command::Open { session: SessionId(session), ttl, label, address: None, owner: None }
        };
        for payload in [batch(&[open(1), Command::Probe]), Bytes::from_static(b"this is no batch")] {
            let error = apply(&table, 2, &payload).expect_err("no node can apply it");
            let text = error.to_string();
            assert!(text.contains("log entry 1.2") && text.contains("--through 1"), "{text}");
            assert_eq!(table.read(|applied| (applied.index(), applied.machine.counts().sessions)), (1, 0));
        }
        let first = table.unapplied().expect("it is noted");
        assert!(first.contains("needs cluster version"), "the first one counts: {first}");
    }

    /// A table that is broken after each entry.
    #[derive(Debug)]
    struct Broken;

    impl Inspect for Broken {
        fn look(&self, _: &Applied, _: usize) {
            panic!("the table contradicts itself");
        }
    }

    /// The panic hook of the program asks for it, on the thread that panics.
    #[test]
    fn a_panic_while_an_entry_is_applied_can_name_the_entry() {
        let table = Table::new(Some(Arc::new(Broken)));
        let payload = batch(&[Command::Tick, Command::Compact { revision: Revision(0) }]);
        let applied = panic::catch_unwind(AssertUnwindSafe(|| apply(&table, 7, &payload)));
        assert!(applied.is_err());
        let (text, advice) = unapplied::being_applied().expect("it was being applied");
        assert!(text.contains("1.7") && text.contains("its command 2 of 2, compact"), "{text}");
        assert!(advice.contains("recover --through 6"), "{advice}");
        unapplied::end();
    }
}
