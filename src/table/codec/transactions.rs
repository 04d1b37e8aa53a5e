//! Transactions as bytes, and back.
//!
//! Every node reads each transaction of the log, and the leader reads it once more before it proposes it. So they are written and read
//! without objects between (see `fields`), which cost more than the values. The bytes are those of the message [`pb::Txn`]. Parts that few
//! transactions have go by their own messages.
//!
//! As in `values`, reading checks no limit. Whoever reads a client's request asks it for its limits ([`Txn::check_limits`]).

use bytes::Bytes;
use prost::Message;

use super::{
    Malformed,
    fields::{FieldContent, MessageFields, MessageWriter},
    keyspace::{read_key, read_range, read_select, write_range, write_select},
    values::{
        read_address, read_identity, read_label, read_name, read_session, read_ttl, session_bytes, write_address,
        write_identity, write_session,
    },
};
use crate::messages as pb;
use lockkeeper_machine::*;

/// The field of a command that has a transaction.
pub(super) const TXN: u32 = 16;
/// Bytes of a compare or an operation beside those of its keys and values, nearly always.
const FIXED_BYTES: usize = 64;

/// A transaction as its message.
pub fn write_txn(txn: &Txn) -> pb::Txn {
    let mut message = writer(txn);
    write_parts(txn, &mut message);
    pb::Txn::decode(&*message.into_bytes()).expect("the bytes are those of the message")
}

/// The transaction of a message, of any size. Fails on one that the table cannot carry out.
pub fn read_txn(txn: &pb::Txn) -> Result<Txn, Malformed> {
    decode_txn(&txn.encode_to_vec())
}

/// The command that a transaction is, as [`pb::Command`].
pub(super) fn encode_command(txn: &Txn) -> Bytes {
    let mut command = writer(txn);
    command.message(TXN, |message| write_parts(txn, message));
    command.into_bytes().into()
}

fn writer(txn: &Txn) -> MessageWriter {
    let parts = txn.compares().len() + txn.operations().count();
    MessageWriter::with_capacity(txn.bytes() + parts * FIXED_BYTES)
}

fn write_parts(txn: &Txn, message: &mut MessageWriter) {
    for compare in txn.compares() {
        message.message(1, |message| write_compare(compare, message));
    }
    for (tag, branch) in [(2, txn.then()), (3, txn.otherwise())] {
        for operation in branch {
            message.message(tag, |message| write_operation(operation, message));
        }
    }

    if let Some(Attached { session, number }) = txn.attached() {
        message.message(4, |message| {
            message.bytes(1, &session_bytes(session));
            message.number(2, number);
        });
    }
    message.flag(5, txn.falls_back());
    message.flag(6, txn.closes());
}

/// The transaction of these bytes.
pub(super) fn decode_txn(bytes: &[u8]) -> Result<Txn, Malformed> {
    // Nearly all have one of each.
    let mut compares = Vec::with_capacity(1);
    let mut then = Vec::with_capacity(1);
    let mut otherwise = Vec::new();
    let mut attached = None;
    let mut falls_back = false;
    let mut closes = false;
    for field in MessageFields::new(bytes) {
        match field? {
            (1, compare) => compares.push(read_compare(compare)?),
            (2, operation) => then.push(read_operation(operation)?),
            (3, operation) => otherwise.push(read_operation(operation)?),
            (4, field) => attached = Some(read_attached(field)?),
            (5, flag) => falls_back = flag.flag()?,
            (6, flag) => closes = flag.flag()?,
            _ => {}
        }
    }

    let read = Txn::from_log(compares, then, otherwise).map_err(|_| {
        Malformed("a transaction that puts, opens or claims the same twice, or opens a session without an entry")
    })?;
    let read = if falls_back { read.falling_back() } else { read };
    match attached {
        Some(attached) if closes => Ok(read.closing(attached)),
        Some(attached) => Ok(read.by_attached(attached)),
        None if closes => Err(Malformed("a transaction that closes a session without a name")),
        None => Ok(read),
    }
}

fn read_attached(message: FieldContent<'_>) -> Result<Attached, Malformed> {
    let mut session = &[][..];
    let mut number = 0;
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, bytes) => session = bytes.bytes()?,
            (2, field) => number = field.number()?,
            _ => {}
        }
    }
    Ok(Attached { session: read_session(session)?, number })
}

fn write_compare(Compare { key, up_to, relation, operand }: &Compare, message: &mut MessageWriter) {
    let relation = match relation {
        Relation::Equal => pb::Relation::Equal,
        Relation::NotEqual => pb::Relation::NotEqual,
        Relation::Less => pb::Relation::Less,
        Relation::Greater => pb::Relation::Greater,
    };

    message.bytes(1, key.as_bytes());
    message.number(2, relation as u64);
    match operand {
        Operand::Created(revision) => message.present_number(3, revision.0),
        Operand::Modified(revision) => message.present_number(4, revision.0),
        Operand::Version(version) => message.present_number(5, *version),
        Operand::Value(value) => message.present_bytes(6, value.as_bytes()),
        Operand::Lease(None) => message.present_bytes(7, &[]),
        Operand::Lease(Some(session)) => message.present_bytes(7, &session_bytes(*session)),
    }
    if let Some(up_to) = up_to {
        message.bytes(8, up_to.as_bytes());
    }
}

fn read_compare(message: FieldContent<'_>) -> Result<Compare, Malformed> {
    let mut key = &[][..];
    let mut relation = 0;
    let mut operand = None;
    let mut up_to = &[][..];
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, bytes) => key = bytes.bytes()?,
            (2, number) => relation = number.number()?,
            (3, number) => operand = Some(Operand::Created(Revision(number.number()?))),
            (4, number) => operand = Some(Operand::Modified(Revision(number.number()?))),
            (5, number) => operand = Some(Operand::Version(number.number()?)),
            (6, bytes) => operand = Some(Operand::Value(Value::from_log(bytes.bytes()?))),
            (7, bytes) => {
                let session = bytes.bytes()?;
                let session = (!session.is_empty()).then(|| read_session(session)).transpose()?;
                operand = Some(Operand::Lease(session));
            }
            (8, bytes) => up_to = bytes.bytes()?,
            _ => {}
        }
    }

    let relation = match pb::Relation::try_from(i32::try_from(relation).unwrap_or(-1)) {
        Ok(pb::Relation::Equal) => Relation::Equal,
        Ok(pb::Relation::NotEqual) => Relation::NotEqual,
        Ok(pb::Relation::Less) => Relation::Less,
        Ok(pb::Relation::Greater) => Relation::Greater,
        Ok(pb::Relation::Unspecified) | Err(_) => return Err(Malformed("a compare with an unknown relation")),
    };
    let operand = operand.ok_or(Malformed("a comparison without an operand"))?;
    let up_to = (!up_to.is_empty()).then(|| read_key(up_to)).transpose()?;
    Ok(Compare { key: read_key(key)?, up_to, relation, operand })
}

fn write_operation(operation: &TxnOperation, message: &mut MessageWriter) {
    match operation {
        TxnOperation::Get(key) => message.present_bytes(1, key.as_bytes()),
        TxnOperation::Put(put) => message.message(2, |message| write_put(put, message)),
        TxnOperation::Delete(key) => message.present_bytes(3, key.as_bytes()),
        TxnOperation::DeleteRange(range) => message.present_bytes(4, &write_range(range).encode_to_vec()),
        TxnOperation::Select(select) => message.present_bytes(5, &write_select(select).encode_to_vec()),
        TxnOperation::Open(NewSession { session, ttl, label, address, owner }) => {
            let new = pb::NewSession {
                session: write_session(*session),
                ttl_ms: ttl.as_millis(),
                label: label.as_str().into(),
                address: write_address(*address),
                owner: write_identity(owner.as_ref()),
            };
            message.present_bytes(6, &new.encode_to_vec());
        }
        TxnOperation::Expire(Expire { key, deadline }) => message.message(7, |message| {
            message.bytes(1, key.as_bytes());
            write_deadline(*deadline, (2, 3), message);
        }),
        TxnOperation::PutChild(PutChild { parent, put, is_numbered }) => message.message(8, |message| {
            message.bytes(1, parent.as_bytes());
            message.message(2, |message| write_put(put, message));
            message.flag(3, *is_numbered);
        }),
    }
}

fn read_operation(message: FieldContent<'_>) -> Result<TxnOperation, Malformed> {
    let mut operation = None;
    for field in MessageFields::new(message.bytes()?) {
        let (tag, field) = field?;
        let read = match tag {
            1 => TxnOperation::Get(read_key(field.bytes()?)?),
            2 => TxnOperation::Put(read_put(field)?),
            3 => TxnOperation::Delete(read_key(field.bytes()?)?),
            4 => TxnOperation::DeleteRange(read_range(&part(field)?)?),
            5 => TxnOperation::Select(read_select(&part(field)?)?),
            6 => TxnOperation::Open(read_new_session(&part(field)?)?),
            7 => TxnOperation::Expire(read_expire(field)?),
            8 => TxnOperation::PutChild(read_child(field)?),
            _ => continue,
        };
        operation = Some(read);
    }
    operation.ok_or(Malformed("an operation of an unknown kind"))
}

/// A part of a transaction that has a message of its own.
fn part<M: Message + Default>(field: FieldContent<'_>) -> Result<M, Malformed> {
    M::decode(field.bytes()?).map_err(|_| Malformed("an operation that cannot be decoded"))
}

fn read_new_session(new: &pb::NewSession) -> Result<NewSession, Malformed> {
    Ok(NewSession {
        session: read_session(&new.session)?,
        ttl: read_ttl(new.ttl_ms)?,
        label: read_label(&new.label),
        address: read_address(&new.address)?,
        owner: read_identity(&new.owner)?,
    })
}

fn read_expire(message: FieldContent<'_>) -> Result<Expire, Malformed> {
    let mut key = &[][..];
    let mut lifetime_ms = 0;
    let mut until = None;
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, bytes) => key = bytes.bytes()?,
            (2, number) => lifetime_ms = number.number()?,
            (3, number) => until = Some(number.number()?),
            _ => {}
        }
    }
    Ok(Expire { key: read_key(key)?, deadline: read_deadline(lifetime_ms, until)? })
}

fn read_child(message: FieldContent<'_>) -> Result<PutChild, Malformed> {
    let mut parent = &[][..];
    let mut put = None;
    let mut is_numbered = false;
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, bytes) => parent = bytes.bytes()?,
            (2, message) => put = Some(read_put(message)?),
            (3, flag) => is_numbered = flag.flag()?,
            _ => {}
        }
    }
    let put = put.ok_or(Malformed("a child without its entry"))?;
    Ok(PutChild { parent: read_key(parent)?, put, is_numbered })
}

fn write_put(Put { key, value, lease, claims }: &Put, message: &mut MessageWriter) {
    message.bytes(1, key.as_bytes());
    message.bytes(2, value.as_bytes());
    if let PutLease::Given(lease) = lease {
        message.message(3, |message| write_lease(*lease, message));
    }
    if let Some(PutClaim { lock, .. }) = claims {
        message.bytes(4, lock.as_str().as_bytes());
    }

    message.flag(5, matches!(lease, PutLease::Kept | PutLease::Renewed));
    message.flag(6, *lease == PutLease::Renewed);
    write_deadline(lease.deadline(), (7, 10), message);
    message.flag(8, matches!(lease, PutLease::Extended(_)));
    if let Some(PutClaim { label, .. }) = claims {
        message.bytes(9, label.as_str().as_bytes());
    }
    message.flag(11, lease.is_temporary());
}

/// What the fields of a put say of the lease, or the deadline, of its entry.
#[derive(Default)]
struct LeaseFields {
    given: Option<Lease>,
    keeps_lease: bool,
    renews_lease: bool,
    lifetime_ms: u64,
    until: Option<u64>,
    keeps_claim: bool,
    is_temporary: bool,
}

fn read_put(message: FieldContent<'_>) -> Result<Put, Malformed> {
    let mut key = &[][..];
    let mut value = &[][..];
    let mut lease = LeaseFields::default();
    let mut lock = "";
    let mut label = "";
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, bytes) => key = bytes.bytes()?,
            (2, bytes) => value = bytes.bytes()?,
            (3, message) => lease.given = Some(read_lease(message)?),
            (4, text) => lock = text.text()?,
            (5, flag) => lease.keeps_lease = flag.flag()?,
            (6, flag) => lease.renews_lease = flag.flag()?,
            (7, number) => lease.lifetime_ms = number.number()?,
            (8, flag) => lease.keeps_claim = flag.flag()?,
            (9, text) => label = text.text()?,
            (10, number) => lease.until = Some(number.number()?),
            (11, flag) => lease.is_temporary = flag.flag()?,
            _ => {}
        }
    }

    let claim = || Ok(PutClaim { lock: read_name(lock)?, label: read_label(label) });
    let claims = (!lock.is_empty()).then(claim).transpose()?;
    Ok(Put { key: read_key(key)?, value: Value::from_log(value), lease: lease.read()?, claims })
}

impl LeaseFields {
    fn read(self) -> Result<PutLease, Malformed> {
        let Self { given, keeps_lease, renews_lease, lifetime_ms, until, keeps_claim, is_temporary } = self;
        let deadline = read_deadline(lifetime_ms, until)?;
        if is_temporary {
            return match (given, deadline, keeps_lease || renews_lease || keeps_claim) {
                (None, Some(EntryDeadline::After(lifetime)), false) => Ok(PutLease::Temporary(lifetime)),
                (_, _, _) => Err(Malformed("a temporary entry without a lifetime, or with a lease")),
            };
        }
        Ok(match (given, deadline, keeps_lease, renews_lease, keeps_claim) {
            (None, None, false, false, false) => PutLease::None,
            (Some(lease), None, false, false, false) => PutLease::Given(lease),
            (None, None, true, false, false) => PutLease::Kept,
            (None, None, true, true, false) => PutLease::Renewed,
            (None, Some(deadline), false, false, false) => PutLease::Until(deadline),
            (None, Some(deadline), false, false, true) => PutLease::Extended(deadline),
            (_, _, _, _, _) => return Err(Malformed("a lease that is both given and kept, or beside a deadline")),
        })
    }
}

fn write_lease(Lease { session, at_end }: Lease, message: &mut MessageWriter) {
    let at_end = match at_end {
        AtLeaseEnd::Delete => pb::AtLeaseEnd::Delete,
        AtLeaseEnd::Keep => pb::AtLeaseEnd::Keep,
    };
    message.bytes(1, &session_bytes(session));
    message.number(2, at_end as u64);
}

fn read_lease(message: FieldContent<'_>) -> Result<Lease, Malformed> {
    let mut session = &[][..];
    let mut at_end = 0;
    for field in MessageFields::new(message.bytes()?) {
        match field? {
            (1, bytes) => session = bytes.bytes()?,
            (2, number) => at_end = number.number()?,
            _ => {}
        }
    }

    let at_end = match pb::AtLeaseEnd::try_from(i32::try_from(at_end).unwrap_or(-1)) {
        Ok(pb::AtLeaseEnd::Delete) => AtLeaseEnd::Delete,
        Ok(pb::AtLeaseEnd::Keep) => AtLeaseEnd::Keep,
        Ok(pb::AtLeaseEnd::Unspecified) | Err(_) => return Err(Malformed("a lease with an unknown end")),
    };
    Ok(Lease { session: read_session(session)?, at_end })
}

/// A lifetime, or else a moment, each in its field.
fn write_deadline(deadline: Option<EntryDeadline>, (lifetime, moment): (u32, u32), message: &mut MessageWriter) {
    match deadline {
        None => {}
        Some(EntryDeadline::After(after)) => message.number(lifetime, after.as_millis()),
        Some(EntryDeadline::At(stamp)) => message.present_number(moment, stamp.0),
    }
}

fn read_deadline(lifetime_ms: u64, until: Option<u64>) -> Result<Option<EntryDeadline>, Malformed> {
    // A lifetime of 0 is none.
    match (Lifetime::from_log(lifetime_ms).ok(), until) {
        (None, None) => Ok(None),
        (Some(lifetime), None) => Ok(Some(EntryDeadline::After(lifetime))),
        (None, Some(until)) => Ok(Some(EntryDeadline::At(Stamp(until)))),
        (Some(_), Some(_)) => Err(Malformed("a lifetime beside a deadline")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::commands::decode_command;

    fn key(key: &[u8]) -> Key {
        Key::new(key).unwrap()
    }

    fn compare() -> Compare {
        let operand = Operand::Value(Value::new(b"held").unwrap());
        Compare { key: key(b"k"), up_to: Some(key(b"l")), relation: Relation::NotEqual, operand }
    }

    fn put(lease: PutLease) -> Put {
        let lock = LockName::new("jobs").unwrap();
        let label = Label::new("worker").unwrap();
        Put { key: key(b"k"), value: Value::new(&[7; 200]).unwrap(), lease, claims: Some(PutClaim { lock, label }) }
    }

    /// One with each field that a transaction can have, but for those that exclude each other.
    fn full() -> Txn {
        let session = SessionId(7);
        let lease = PutLease::Given(Lease { session, at_end: AtLeaseEnd::Keep });
        let ttl = Ttl::from_millis(1000).unwrap();
        let new = NewSession { session, ttl, label: Label::default(), address: None, owner: None };
        let child = PutChild { parent: key(b"p"), put: put(lease), is_numbered: true };
        let moment = EntryDeadline::At(Stamp(0));
        let then = vec![TxnOperation::Open(new), TxnOperation::PutChild(child)];
        let range = KeyRange { from: Some(key(b"a")), to: None };
        let otherwise = vec![
            TxnOperation::Expire(Expire { key: key(b"e"), deadline: Some(moment) }),
            TxnOperation::Put(put(PutLease::Until(moment))),
            TxnOperation::Select(Select { limit: 3, ..Select::default() }),
            TxnOperation::DeleteRange(range),
            TxnOperation::Get(key(b"g")),
            TxnOperation::Delete(key(b"d")),
        ];
        let txn = Txn::new(vec![compare()], then, otherwise).unwrap();
        txn.falling_back().closing(Attached { session, number: 300 })
    }

    /// Whoever reads the log by its messages, as an older program does, reads the same.
    #[test]
    fn the_bytes_are_those_of_the_message() {
        let Ok(command) = pb::Command::decode(encode_command(&full())) else { panic!("it is a command") };
        let Some(pb::command::Kind::Txn(message)) = &command.kind else { panic!("it is a transaction") };
        assert_eq!(*message, write_txn(&full()));
        assert_eq!(read_txn(message), Ok(full()));
        // All fields are known to the message: it leaves out those that are not.
        assert_eq!(command.encoded_len(), encode_command(&full()).len());
        assert!(message.closes && message.falls_back && message.attached.as_ref().is_some_and(|by| by.number == 300));
        assert_eq!(decode_command(command.encode_to_vec().into()), Ok(Command::Txn(full())));
    }

    #[test]
    fn a_transaction_that_lacks_a_part_is_malformed() {
        let of = |change: fn(&mut pb::Txn)| {
            let mut txn = write_txn(&full());
            change(&mut txn);
            read_txn(&txn).err().map(|Malformed(why)| why)
        };
        assert_eq!(of(|_| {}), None);
        assert_eq!(of(|txn| txn.attached = None), Some("a transaction that closes a session without a name"));
        assert_eq!(of(|txn| txn.compares[0].operand = None), Some("a comparison without an operand"));
        assert_eq!(of(|txn| txn.compares[0].relation = 9), Some("a compare with an unknown relation"));
        assert_eq!(of(|txn| txn.then[0].kind = None), Some("an operation of an unknown kind"));
        assert!(of(|txn| txn.then.truncate(1)).is_some_and(|why| why.contains("without an entry")));
    }

    /// What a broken disk makes of it is refused, or is another transaction that can be written again.
    #[test]
    fn changed_bytes_are_a_transaction_or_refused() {
        let whole = encode_command(&full());
        for place in 0..whole.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[place] ^= change;
                let Ok(read) = decode_command(bytes.into()) else { continue };
                let again = crate::codec::commands::encode_command(&read);
                assert_eq!(decode_command(again), Ok(read), "byte {place} changed by {change}");
            }
            assert!(decode_command(whole.slice(..place)).is_err(), "cut off after {place} bytes");
        }
    }
}
