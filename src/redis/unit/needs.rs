//! What a unit reads and writes, as far as its arguments tell.

use super::{CommandUnit, UnitCall};
use crate::{
    commands::{self, Flag},
    key::{store_key, token_key},
    view::UnitNeeds,
};

impl CommandUnit {
    /// Whether it reads keys that its arguments name, and does nothing else. It can run on any node with one read. Commands that tell the
    /// time are not among these: nodes have clocks that differ.
    pub(super) fn is_read_of_keys(&self) -> bool {
        self.calls.iter().all(|call| match call {
            UnitCall::Script(_) => false,
            UnitCall::Command(arguments) => commands::find(&arguments[0]).is_none_or(|command| {
                let is_plain = !command.has(Flag::Write) && command.name != "scan" && !command.tells_time();
                is_plain && !command.has(Flag::Blocking)
            }),
        })
    }

    /// Whether it may write something, as far as its commands say.
    pub(super) fn may_write(&self) -> bool {
        self.calls.iter().any(|call| match call {
            UnitCall::Script(script) => !script.is_read_only,
            UnitCall::Command(arguments) => {
                commands::find(&arguments[0]).is_some_and(|command| command.has(Flag::Write))
            }
        })
    }

    /// What the arguments say that it needs.
    pub(super) fn first_needs(&self) -> UnitNeeds {
        let mut needs = UnitNeeds::default();
        let mut database = self.database;
        needs.keys.extend(self.watched.iter().map(|(key, _)| key.clone()));

        for call in &self.calls {
            match call {
                UnitCall::Script(script) => {
                    let keys = script.keys.iter().map(|key| token_key(key).unwrap_or(key));
                    needs.keys.extend(keys.map(|key| store_key(database, key)));
                }
                UnitCall::Command(arguments) => {
                    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                    let Ok(command) = commands::find_checked(&arguments) else { continue };
                    let keys = command.keys(&arguments).into_iter().map(|key| token_key(key).unwrap_or(key));
                    needs.keys.extend(keys.map(|key| store_key(database, key)));
                    needs.time |= command.tells_time();
                    if command.name == "select" {
                        database = commands::database(arguments[1]).unwrap_or(database);
                    }
                }
            }
        }
        needs
    }
}
