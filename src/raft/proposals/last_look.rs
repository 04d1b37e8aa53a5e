//! The last look at a command before it is proposed.
//!
//! An entry of the log cannot be refused: each node applies it, now and at each later start. So an invalid command must be found before it
//! is in an entry, while only its caller is refused. The leader looks at each command as the other nodes will get it:
//!
//! * all its values are within the limits of this version ([`Command::check_limits`]), those included that the server has added, such as
//!   the owners of sessions;
//! * it is the same command after it was encoded and decoded;
//! * it fits into a message to the peers.
//!
//! Whether the table can take it is decided when it is applied, by a rule that refuses the command and never fails. The caller's task
//! looks, so it costs the runtime of Raft nothing.
//!
//! A release, a renewal and other commands of a few numbers have nothing that could be out of bounds, and are not decoded again.

use bytes::Bytes;

use crate::network::MESSAGE_BYTES_MAX;
use lockkeeper_machine::{Command, Operation};
use lockkeeper_planted::Planted;
use lockkeeper_table::codec::commands::{decode_command, encode_command};
use lockkeeper_transport::LogThrottle;

/// Bytes of one command in the log, at the most. With it a batch, and so an append of one entry, fits into a message between nodes.
const COMMAND_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// Why a command cannot be proposed. It had no effect. The log of the node says more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// A value in it is beyond a limit.
    #[error("a value of the command is beyond its limit")]
    Limit,
    /// It is too large for a message between nodes.
    #[error("the command has {bytes} bytes: the limit is {COMMAND_BYTES_MAX}; ask for less at once")]
    Bytes {
        /// Its bytes.
        bytes: usize,
    },
    /// It would be another command after it was encoded and decoded.
    #[error("the command cannot be written into the log: this is a mistake in this program")]
    Encoding,
}

/// Returns a command as the entry will have it, or refuses one that should not become a part of an entry.
pub(crate) fn look(command: &Command, refused: &LogThrottle) -> Result<Bytes, Unfit> {
    let found = find(command);
    if let Err((unfit, why)) = &found
        && let Some(count) = refused.count()
    {
        tracing::error!(count, kind = command.kind(), %unfit, why, "a command was not proposed");
    }
    found.map_err(|(unfit, _)| unfit)
}

fn find(command: &Command) -> Result<Bytes, (Unfit, String)> {
    if Planted::EntryProposedUnread.is_on() {
        return Ok(encode_command(command));
    }
    command.check_limits().map_err(|invalid| (Unfit::Limit, invalid.to_string()))?;

    let encoded = encode_command(command);
    if has_only_numbers(command) {
        return Ok(encoded);
    }

    let bytes = encoded.len();
    if bytes > COMMAND_BYTES_MAX {
        return Err((Unfit::Bytes { bytes }, String::new()));
    }
    match decode_command(encoded.clone()) {
        Ok(decoded) if decoded == *command => Ok(encoded),
        Ok(_) => Err((Unfit::Encoding, "it is another one when it is decoded".to_owned())),
        Err(malformed) => Err((Unfit::Encoding, malformed.to_string())),
    }
}

/// Whether a command consists of a bounded number of numbers.
fn has_only_numbers(command: &Command) -> bool {
    match command {
        Command::Renew { .. }
        | Command::Attach { .. }
        | Command::CancelWait { .. }
        | Command::Compact { .. }
        | Command::RaiseVersion { .. }
        | Command::BeginAudit
        | Command::Probe
        | Command::Tick
        | Command::Session { operation: Operation::Release(_), .. } => true,
        Command::Open { .. }
        | Command::SetOwner { .. }
        | Command::Close { .. }
        | Command::Session { operation: Operation::Acquire(_) | Operation::Update(_), .. }
        | Command::ForceRelease(_)
        | Command::RemoveWaiter { .. }
        | Command::LiftDelay { .. }
        | Command::DropData { .. }
        | Command::Resize { .. }
        | Command::Txn(_)
        | Command::Note(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::*;

    fn put(bytes: usize) -> TxnOperation {
        let (key, value) = (Key::new(&bytes.to_be_bytes()).unwrap(), Value::from_log(&vec![7; bytes]));
        TxnOperation::Put(Put { key, value, lease: PutLease::None, claims: None })
    }

    fn txn(then: Vec<TxnOperation>) -> Command {
        Command::Txn(Txn::from_log(vec![], then, vec![]).unwrap())
    }

    #[test]
    fn a_command_beyond_a_limit_is_refused_before_it_is_in_an_entry() {
        let fits = txn(vec![put(VALUE_BYTES_MAX)]);
        assert_eq!(look(&fits, &LogThrottle::default()), Ok(encode_command(&fits)));
        let large = (0..4).map(|less| put(VALUE_BYTES_MAX - less)).collect();
        let name = LockName::from_log(&"n".repeat(NAME_BYTES_MAX + 1)).unwrap();
        let owner = Identity::from_log(&"o".repeat(IDENTITY_BYTES_MAX + 1)).ok();
        let (session, ttl, label) = (SessionId(1), Ttl::from_millis(TTL_MS_MAX).unwrap(), Label::default());
        for command in [
            txn(vec![put(VALUE_BYTES_MAX + 1)]),
            txn(large),
            Command::LiftDelay { name, by: None },
            Command::Open { session, ttl, label, address: None, owner },
            Command::Note(Note { act: "a".repeat(NOTE_BYTES_MAX + 1), ..Note::default() }),
        ] {
            assert_eq!(look(&command, &LogThrottle::default()), Err(Unfit::Limit), "{}", command.kind());
        }
    }

    #[test]
    fn a_command_that_fits_into_no_message_is_refused() {
        let prefix = "p".repeat(COMMAND_BYTES_MAX);
        let drop = Command::DropData { prefix, after: None, by: None };
        let refused = look(&drop, &LogThrottle::default());
        assert!(matches!(refused, Err(Unfit::Bytes { bytes }) if bytes > COMMAND_BYTES_MAX), "{refused:?}");
    }
}
