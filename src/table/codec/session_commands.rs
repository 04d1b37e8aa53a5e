//! Acquires and releases as bytes, and back: as `transactions`, and for the same reason. The bytes are those of [`pb::Acquire`] and
//! [`pb::Release`] in a [`pb::Command`].

use bytes::Bytes;
use prost::{Message, encoding::decode_varint};

use super::{
    Malformed,
    fields::{FieldContent, MessageFields, MessageWriter},
    values::{acquire_of, read_name, read_open, read_permits, read_session, session_bytes, write_wait},
};
use crate::messages as pb;
use lockkeeper_machine::*;

/// The field of a command that has an acquire.
pub(super) const ACQUIRE: u32 = 4;
/// The field of a command that has a release.
pub(super) const RELEASE: u32 = 5;
/// Bytes of a command beside those of names and data, nearly always.
const FIXED_BYTES: usize = 64;
/// The same of each lock that it asks for.
const WANT_BYTES: usize = 24;

/// The command that acquires, as [`pb::Command`].
pub(super) fn encode_acquire(session: SessionId, request: Option<&Request>, acquire: &Acquire) -> Bytes {
    let want_bytes = |want: &Want| {
        WANT_BYTES + want.name.as_str().len() + want.data.as_ref().map_or(0, |data| data.as_bytes().len())
    };
    let bytes = FIXED_BYTES + acquire.wants().iter().map(want_bytes).sum::<usize>();

    let mut command = MessageWriter::with_capacity(bytes);
    command.message(ACQUIRE, |message| {
        write_caller(session, request, message);
        for want in acquire.wants() {
            message.message(3, |message| write_want(want, message));
        }
        if let Some(ms) = write_wait(acquire.wait) {
            message.present_number(4, ms);
        }
        message.number(5, acquire.lock_delay_ms.into());
    });
    command.into_bytes().into()
}

/// The command that releases, as [`pb::Command`].
pub(super) fn encode_release(session: SessionId, request: Option<&Request>, target: &Target) -> Bytes {
    let mut command = MessageWriter::with_capacity(FIXED_BYTES);
    command.message(RELEASE, |message| {
        write_caller(session, request, message);
        match target {
            Target::Grant(token) => message.present_number(3, token.0),
            Target::Acquire(id) => message.present_number(4, *id),
        }
    });
    command.into_bytes().into()
}

/// The command of a message.
pub(super) fn read_acquire(acquire: &pb::Acquire) -> Result<Command, Malformed> {
    decode_acquire(&acquire.encode_to_vec())
}

/// The command of a message.
pub(super) fn read_release(release: &pb::Release) -> Result<Command, Malformed> {
    decode_release(&release.encode_to_vec())
}

/// The command of the bytes of a [`pb::Acquire`].
pub(super) fn decode_acquire(message: &[u8]) -> Result<Command, Malformed> {
    let mut session = &[][..];
    let mut request = None;
    let mut wants = Vec::with_capacity(1);
    let mut wait_ms = None;
    let mut lock_delay_ms = 0;
    for field in MessageFields::new(message) {
        match field? {
            (1, bytes) => session = bytes.bytes()?,
            (2, message) => request = Some(read_request(message)?),
            (3, message) => wants.push(read_want(message)?),
            (4, number) => wait_ms = Some(number.number()?),
            (5, number) => lock_delay_ms = short(number)?,
            _ => {}
        }
    }

    let operation = Operation::Acquire(acquire_of(wants, wait_ms, lock_delay_ms)?);
    Ok(Command::Session { session: read_session(session)?, request, operation })
}

/// The command of the bytes of a [`pb::Release`].
pub(super) fn decode_release(message: &[u8]) -> Result<Command, Malformed> {
    let mut session = &[][..];
    let mut request = None;
    let mut target = None;
    for field in MessageFields::new(message) {
        match field? {
            (1, bytes) => session = bytes.bytes()?,
            (2, message) => request = Some(read_request(message)?),
            (3, number) => target = Some(Target::Grant(Token(number.number()?))),
            (4, number) => target = Some(Target::Acquire(number.number()?)),
            _ => {}
        }
    }

    let operation = Operation::Release(target.ok_or(Malformed("a release without a target"))?);
    Ok(Command::Session { session: read_session(session)?, request, operation })
}

fn write_caller(session: SessionId, request: Option<&Request>, message: &mut MessageWriter) {
    message.bytes(1, &session_bytes(session));
    let Some(Request { id, open }) = request else { return };
    message.message(2, |message| {
        message.number(1, *id);
        message.number(2, open.lowest());
        message.numbers(3, open.kept());
    });
}

fn read_request(message: FieldContent<'_>) -> Result<Request, Malformed> {
    let mut id = 0;
    let mut lowest = 0;
    let mut kept = Vec::new();
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, number) => id = number.number()?,
            (2, number) => lowest = number.number()?,
            // One by one, or all in one field.
            (3, FieldContent::Number(number)) => kept.push(number),
            (3, numbers) => {
                let mut rest = numbers.bytes()?;
                while !rest.is_empty() {
                    kept.push(decode_varint(&mut rest).map_err(|_| Malformed("a number that is cut off"))?);
                }
            }
            _ => {}
        }
    }
    Ok(Request { id, open: read_open(lowest, kept)? })
}

fn write_want(want: &Want, message: &mut MessageWriter) {
    message.bytes(1, want.name.as_str().as_bytes());
    message.message(2, |message| match want.mode {
        Mode::Exclusive => message.present_number(1, 1),
        Mode::Shared => message.present_number(2, 1),
        Mode::Permit(permits) => message.present_number(3, permits.get().into()),
    });
    if let Some(data) = &want.data {
        message.present_bytes(3, data.as_bytes());
    }
    message.flag(4, want.keep_data);
    message.flag(5, want.must_exist);
}

fn read_want(message: FieldContent<'_>) -> Result<Want, Malformed> {
    let mut name = &[][..];
    let mut mode = None;
    let mut data = None;
    let mut keep_data = false;
    let mut must_exist = false;
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, bytes) => name = bytes.bytes()?,
            (2, message) => mode = read_mode(message)?,
            (3, bytes) => data = Some(Data::from_log(bytes.bytes()?)),
            (4, flag) => keep_data = flag.flag()?,
            (5, flag) => must_exist = flag.flag()?,
            _ => {}
        }
    }
    let mode = mode.ok_or(Malformed("a lock without a mode"))?;
    Ok(Want { name: read_name(name)?, mode, data, keep_data, must_exist })
}

fn read_mode(message: FieldContent<'_>) -> Result<Option<Mode>, Malformed> {
    let mut mode = None;
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, flag) => mode = flag.flag().map(|_| Some(Mode::Exclusive))?,
            (2, flag) => mode = flag.flag().map(|_| Some(Mode::Shared))?,
            (3, number) => mode = Some(Mode::Permit(read_permits(short(number)?)?)),
            _ => {}
        }
    }
    Ok(mode)
}

fn short(number: FieldContent<'_>) -> Result<u32, Malformed> {
    u32::try_from(number.number()?).map_err(|_| Malformed("a number of more than 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::commands::{decode_command, encode_command};

    const SESSION: SessionId = SessionId(7);

    /// An acquire with each field that it can have, and releases of both kinds.
    fn commands() -> [Command; 3] {
        let want = |name: &str, mode, data: Option<&[u8]>| Want {
            name: LockName::new(name).unwrap(),
            mode,
            data: data.map(|data| Data::new(data).unwrap()),
            keep_data: data.is_none(),
            must_exist: data.is_some(),
        };
        let wants = vec![
            want("jobs", Mode::Exclusive, Some(b"")),
            want("rooms", Mode::Shared, None),
            want("seats", Mode::Permit(Permits::new(300).unwrap()), Some(&[9; 200])),
        ];
        let acquire = Operation::Acquire(Acquire::new(wants, Wait::Millis(300), 400).unwrap());
        let open = OpenIds::new(900, vec![1, 200, 899]).unwrap();
        let request = Some(Request { id: 300, open });
        [
            Command::Session { session: SESSION, request: request.clone(), operation: acquire },
            Command::Session { session: SESSION, request, operation: Operation::Release(Target::Grant(Token(0))) },
            Command::Session { session: SESSION, request: None, operation: Operation::Release(Target::Acquire(5)) },
        ]
    }

    /// Whoever reads the log by its messages reads the same, and all fields are known to them.
    #[test]
    fn the_bytes_are_those_of_the_messages() {
        for command in commands() {
            let bytes = encode_command(&command);
            let message = pb::Command::decode(bytes.clone()).expect("it is a command");
            assert_eq!(message.encoded_len(), bytes.len(), "{message:?}");
            assert_eq!(decode_command(message.encode_to_vec().into()), Ok(command.clone()));
            let kind = message.kind.expect("it is of some kind");
            let read = if let pb::command::Kind::Acquire(acquire) = &kind {
                read_acquire(acquire)
            } else {
                let pb::command::Kind::Release(release) = &kind else { panic!("{kind:?}") };
                read_release(release)
            };
            assert_eq!(read, Ok(command));
        }
    }

    /// Damage behind a command is no part of it that could be passed over.
    #[test]
    fn what_follows_a_command_counts() {
        let [acquire, release, _] = commands().map(|command| encode_command(&command));
        for rest in [&[0x80][..], &[0x0b], &[0x12, 9, 1]] {
            assert!(decode_command([&acquire[..], rest].concat().into()).is_err(), "{rest:?}");
        }
        let both = [&acquire[..], &release[..]].concat();
        assert_eq!(decode_command(both.into()), decode_command(release), "the last one counts");
    }

    #[test]
    fn kept_ids_may_be_written_one_by_one() {
        let open = OpenIds::new(900, vec![3, 300]).unwrap();
        let one_by_one = [8, 4, 16, 0x84, 7, 24, 3, 24, 0xac, 2];
        assert_eq!(read_request(FieldContent::Bytes(&one_by_one)), Ok(Request { id: 4, open }));
    }

    #[test]
    fn changed_bytes_are_a_command_or_refused() {
        for command in commands() {
            let whole = encode_command(&command);
            for place in 0..whole.len() {
                for change in [1, 0x80, 0xff] {
                    let mut bytes = whole.to_vec();
                    bytes[place] ^= change;
                    let Ok(read) = decode_command(bytes.into()) else { continue };
                    assert_eq!(decode_command(encode_command(&read)), Ok(read), "byte {place} changed by {change}");
                }
                assert!(decode_command(whole.slice(..place)).is_err(), "cut off after {place} bytes");
            }
        }
    }
}
