//! Answers of several pages, and their turns.
//!
//! An answer has up to 4 MiB, and is in memory as entries, as a message and as bytes. What is read in one page, as nearly all answers are,
//! needs no turn; one that needs a second page waits for it. So a node makes a few large answers at a time, whatever is asked of it.

use crate::{Etcd, EtcdStore, error::Error};

/// The answer to one request, with its turn once it needs one.
pub(crate) struct LargeAnswer<'a, S: EtcdStore> {
    pub(crate) etcd: &'a Etcd<S>,
    pub(crate) caller: &'a S::Caller,
    turn: Option<S::AnswerTurn>,
}

impl<'a, S: EtcdStore> LargeAnswer<'a, S> {
    /// Without a turn: the first page needs none.
    pub(crate) fn new(etcd: &'a Etcd<S>, caller: &'a S::Caller) -> Self {
        Self { etcd, caller, turn: None }
    }

    /// Waits for the turn, unless the answer has it. Called before anything is read beyond the first page. Fails if too many wait.
    pub(crate) async fn take_turn(&mut self) -> Result<(), Error> {
        if self.turn.is_none() {
            self.turn = Some(self.etcd.store.answer_turn(self.caller).await?);
        }
        Ok(())
    }
}
