//! An entry of the log that cannot be applied.
//!
//! There should be none: the leader looks at each command before it proposes it (`last_look`), and the table refuses what it cannot do. If
//! there is one all the same, the log of each member has it, so each of them must stop *before* it, and say which one it is: an entry that
//! is skipped on one node would make its table differ from the others'.
//!
//! * An entry that cannot be read, or needs another version, is noted by its table ([`Table::unapplied`](crate::Table::unapplied)),
//!   and the node ends with its text.
//! * A panic while an entry is applied ends the process, whose panic hook asks [`being_applied`]. The changes up to there were in memory
//!   only: the next start applies the entries before it, and ends again.
//!
//! If no member can apply that entry, no member has answered a request from that entry on. So a new cluster that ends before it loses
//! nothing that was acknowledged: `recover --through`.

use std::cell::Cell;

use crate::EntryId;

/// What a thread applies.
#[derive(Clone, Copy)]
struct Applying {
    entry: EntryId,
    /// Its commands, the one that runs, from 1 on, and the kind of that.
    commands: usize,
    command: usize,
    kind: &'static str,
}

thread_local! {
    /// One thread applies an entry from its begin to its end.
    static APPLYING: Cell<Option<Applying>> = const { Cell::new(None) };
}

/// From now on this thread applies an entry, up to [`end`].
pub(super) fn begin(entry: EntryId, commands: usize) {
    APPLYING.set(Some(Applying { entry, commands, command: 0, kind: "" }));
}

/// Its next command runs.
pub(super) fn begin_command(kind: &'static str) {
    if let Some(applying) = APPLYING.get() {
        APPLYING.set(Some(Applying { command: applying.command + 1, kind, ..applying }));
    }
}

/// The entry is applied.
pub(super) fn end() {
    APPLYING.set(None);
}

/// The entry that the calling thread applies, as a text that goes on with why it cannot, and the advice. For a panic hook.
pub fn being_applied() -> Option<(String, String)> {
    let Applying { entry, commands, command, kind } = APPLYING.get()?;
    let place = match command {
        0 => "the work that is due before its commands".to_owned(),
        command => format!("its command {command} of {commands}, {kind}"),
    };
    Some((format!("log entry {entry} cannot be applied ({place})"), advice(entry.index)))
}

/// What an operator does about an entry that no member can apply.
pub(super) fn advice(index: u64) -> String {
    let before = index.saturating_sub(1);
    format!(
        "this node stopped before entry {index}, and changed nothing on its disk; if other members apply it, replace this node with \
         `lockkeeper member replace`; if all stop here, install a version that applies it, or make a new cluster that ends before it, which \
         loses nothing that was acknowledged: `lockkeeper recover --through {before}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_what_it_applies() {
        assert_eq!(being_applied(), None);
        begin(EntryId { term: 3, index: 17 }, 2);
        let text = || being_applied().expect("it applies one").0;
        assert!(text().contains("the work that is due"), "{}", text());
        begin_command("open");
        begin_command("txn");
        assert!(text().contains("17") && text().contains("its command 2 of 2, txn"), "{}", text());
        let other = std::thread::spawn(being_applied).join().expect("it ends");
        assert_eq!(other, None, "another thread applies nothing");
        let advice = being_applied().expect("it applies one").1;
        assert!(advice.contains("--through 16"), "{advice}");
        end();
        assert_eq!(being_applied(), None);
    }
}
