//! Commands at each of their limits, as they are really proposed: looked at, encoded, decoded, applied, written into a snapshot, restored.
//!
//! And commands beyond all limits, as another version may have allowed them: the proposer refuses them, and an entry that has them is
//! applied all the same.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::proposals::last_look::{self, Unfit};
use lockkeeper_machine::*;
use lockkeeper_table::codec::{commands, records};
use lockkeeper_transport::LogThrottle;

/// How many times its limit each value is.
#[derive(Clone, Copy)]
struct Times(usize);

impl Times {
    fn text(self, most: usize) -> String {
        "x".repeat(most * self.0)
    }

    fn name(self, first: usize) -> LockName {
        let name = format!("{first:06}{}", self.text(NAME_BYTES_MAX));
        LockName::from_log(&name[..NAME_BYTES_MAX * self.0]).unwrap()
    }

    fn identity(self) -> Option<Identity> {
        Identity::from_log(&self.text(IDENTITY_BYTES_MAX)).ok()
    }

    fn label(self) -> Label {
        Label::from_log(&self.text(LABEL_BYTES_MAX))
    }

    fn reason(self) -> Reason {
        Reason::from_log(&self.text(REASON_BYTES_MAX)).unwrap()
    }

    fn data(self) -> Option<Data> {
        Some(Data::from_log(&vec![7; DATA_BYTES_MAX * self.0]))
    }

    fn ttl(self) -> Ttl {
        Ttl::from_log(TTL_MS_MAX * self.0 as u32).unwrap()
    }

    fn permits(self) -> Permits {
        Permits::from_log(PERMITS_MAX * self.0 as u32).unwrap()
    }

    fn key(self, first: u8) -> Key {
        let mut key = vec![b'k'; KEY_BYTES_MAX * self.0];
        key[0] = first;
        Key::from_log(&key).unwrap()
    }

    /// With as many request ids kept as a client may keep.
    fn request(self, id: u64) -> Option<Request> {
        let kept: Vec<u64> = (1..=(REPLIES_PER_SESSION_MAX * self.0) as u64).collect();
        Some(Request { id, open: OpenIds::from_log(id, kept).unwrap() })
    }

    fn open(self, session: SessionId) -> Command {
        let ttl = self.ttl();
        let label = self.label();
        let owner = self.identity();
        Command::Open { session, ttl, label, address: address(), owner }
    }

    fn acquire(self, session: SessionId, id: u64, mode: Mode, names: usize) -> Command {
        let want =
            |number| Want { name: self.name(number), mode, data: self.data(), keep_data: true, must_exist: false };
        let wants = (names..names + WANTS_MAX * self.0).map(want).collect();
        let wait = Wait::from_log(WAIT_MS_MAX * self.0 as u64);
        let operation = Operation::Acquire(Acquire::from_log(wants, wait, LOCK_DELAY_MS_MAX * self.0 as u32).unwrap());
        Command::Session { session, request: self.request(id), operation }
    }

    fn txn(self) -> Txn {
        let lease = |session, at_end| PutLease::Given(Lease { session, at_end });
        let put = |first, session, at_end| {
            let (value, claims) =
                (Value::from_log(&vec![7; VALUE_BYTES_MAX * self.0]), Some(self.name(usize::from(first)).into()));
            TxnOperation::Put(Put { key: self.key(first), value, lease: lease(session, at_end), claims })
        };
        let new = |session| NewSession { session, ttl: self.ttl(), label: self.label(), address: None, owner: None };
        let puts = vec![
            TxnOperation::Open(new(CID)),
            put(200, CID, AtLeaseEnd::Keep),
            TxnOperation::Open(new(DAN)),
            put(201, DAN, AtLeaseEnd::Delete),
        ];
        let value = Operand::Value(Value::from_log(&vec![8; VALUE_BYTES_MAX * self.0]));
        let compare =
            Compare { key: self.key(200), up_to: Some(self.key(202)), relation: Relation::Less, operand: value };
        // No entry is there, so the compare does not hold. Three of the longest values are below the limit of a transaction.
        let all = TxnOperation::DeleteRange(KeyRange::default());
        Txn::from_log(vec![compare], vec![all], puts).unwrap()
    }

    /// All commands, in an order in which they have an effect.
    fn commands(self) -> Vec<Command> {
        let by = self.identity();
        let reason = self.reason();
        let update = Update { token: Token(1), name: self.name(0), data: self.data(), keep_data: true };
        let force = |now, token| {
            let name = self.name(0);
            let reason = self.reason();
            let by = self.identity();
            Command::ForceRelease(ForceRelease { name, token, after: Token(0), up_to: None, reason, now, by })
        };
        let text = || self.text(NOTE_BYTES_MAX);
        let note = Note { who: Some(text()), act: text(), target: text(), reason: text(), omitted: u64::MAX };
        let drop =
            Command::DropData { prefix: self.name(0).as_str().into(), after: Some(self.name(0)), by: self.identity() };
        let session = |session, id, operation| Command::Session { session, request: self.request(id), operation };
        let base = (REPLIES_PER_SESSION_MAX * self.0) as u64 + 1;
        vec![
            Command::RaiseVersion { to: Versions::OWN.highest },
            self.open(ANN),
            self.open(BOB),
            self.acquire(ANN, base, Mode::Exclusive, 0),
            self.acquire(BOB, base, Mode::Exclusive, 0),
            session(ANN, base + 1, Operation::Update(update)),
            force(false, None),
            force(true, Some(Token(1))),
            session(ANN, base + 2, Operation::Release(Target::Grant(Token(1)))),
            self.acquire(ANN, base + 3, Mode::Permit(self.permits()), 1000),
            Command::Resize { name: self.name(1000), permits: self.permits(), by: self.identity() },
            Command::RemoveWaiter { name: self.name(0), ticket: Ticket(1), by: self.identity() },
            Command::LiftDelay { name: self.name(0), by: self.identity() },
            drop,
            Command::Renew { sessions: vec![ANN; 1024 * self.0] },
            Command::Attach { session: ANN },
            Command::SetOwner { session: ANN, owner: self.identity().expect("an identity") },
            Command::Note(note),
            Command::Compact { revision: Revision(u64::MAX) },
            Command::CancelWait { ticket: Ticket(u64::MAX), repeats: Some(u64::MAX) },
            Command::Close { session: BOB, by, reason: Some(reason) },
            Command::Tick,
        ]
    }
}

const ANN: SessionId = SessionId(u128::MAX);
const BOB: SessionId = SessionId(u128::MAX - 1);
const CID: SessionId = SessionId(u128::MAX - 2);
const DAN: SessionId = SessionId(u128::MAX - 3);

/// The longest.
fn address() -> Option<Address> {
    let ip = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb80, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff));
    Some(SocketAddr::new(ip, u16::MAX).into())
}

fn look(command: &Command) -> Result<(), Unfit> {
    last_look::look(command, &LogThrottle::default()).map(drop)
}

/// Applies what the log has after a command was proposed; then goes on with the table of a snapshot.
fn apply(machine: &mut Machine, stamp: u64, limits: Limits, command: &Command) -> Reply {
    let time = Time { stamp: Stamp(stamp), wall: WallTime(u64::MAX) };
    let entry = commands::encode(time, limits, std::slice::from_ref(command));
    let (time, limits, decoded) = commands::decode(&entry).expect("what was encoded is decoded");
    assert_eq!(&decoded[..], std::slice::from_ref(command), "{}", command.kind());
    let reply = machine.apply_batch(time, limits, decoded, &mut Vec::new()).remove(0);
    machine.check().unwrap();

    let written: Vec<_> = machine.records().map(|record| records::encode(&record)).collect();
    let read = written.iter().map(|record| records::decode(record).expect("what was encoded is decoded"));
    let restored = Machine::from_records(read).expect("a sound table");
    assert_eq!(restored.hash(), machine.hash(), "after {}", command.kind());
    *machine = restored;
    reply
}

#[test]
fn each_command_and_record_at_its_limits_is_proposed_applied_and_restored() {
    let mut machine = Machine::default();
    for command in Times(1).commands() {
        assert_eq!(look(&command), Ok(()), "{}", command.kind());
        let reply = apply(&mut machine, 1, Limits::default(), &command);
        let is_future = matches!(command, Command::Compact { .. });
        assert_eq!(
            matches!(reply, Reply::Refused(_)) && !matches!(command, Command::Session { .. }),
            is_future,
            "{reply:?}"
        );
    }

    let txn = Times(1).txn().opened_by(address(), Times(1).identity().as_ref());
    let txn = Command::Txn(txn.expect("it has room for its owners"));
    assert_eq!(look(&txn), Ok(()));
    let reply = apply(&mut machine, 2, Limits::default(), &txn);
    assert!(matches!(reply, Reply::Committed(_)), "{reply:?}");
    // All that it left ends, and what claimed the locks with it.
    let reply = apply(&mut machine, 2 * u64::from(TTL_MS_MAX), Limits::default(), &Command::Tick);
    assert_eq!(reply, Reply::Ticked);
}

/// The owner's name counts, as it is in the entry: the transaction is refused before it is in one.
#[test]
fn a_transaction_at_its_limit_has_room_for_its_owner_or_is_refused() {
    let owner = Times(1).identity().unwrap();
    let with = |filler: usize| {
        let new = NewSession { session: CID, ttl: Times(1).ttl(), label: Times(1).label(), address: None, owner: None };
        let lease = PutLease::Given(Lease { session: CID, at_end: AtLeaseEnd::Keep });
        let put = |first, bytes: usize, lease| {
            let key = Key::from_log(&[first]).unwrap();
            TxnOperation::Put(Put { key, value: Value::from_log(&vec![7; bytes]), lease, claims: None })
        };
        let then = vec![
            TxnOperation::Open(new),
            put(1, VALUE_BYTES_MAX, lease),
            put(2, VALUE_BYTES_MAX, lease),
            put(3, VALUE_BYTES_MAX, lease),
            put(4, filler, lease),
        ];
        Txn::new(vec![], then, vec![]).unwrap()
    };
    let filler = TXN_BYTES_MAX - with(0).bytes();
    assert_eq!(with(filler).bytes(), TXN_BYTES_MAX, "alone it is at the limit");

    for over in 0..=owner.as_str().len() {
        let filler = filler - owner.as_str().len() + over;
        let opened = with(filler).opened_by(address(), Some(&owner));
        if over > 0 {
            assert_eq!(opened.err(), Some(InvalidTxn::TooLarge { bytes: TXN_BYTES_MAX + over }));
            continue;
        }
        let txn = Command::Txn(opened.expect("it fits"));
        assert_eq!(look(&txn), Ok(()));
        let reply = apply(&mut Machine::default(), 0, Limits::default(), &txn);
        assert!(matches!(reply, Reply::Committed(_)), "{reply:?}");
    }
}

/// Another version may have higher limits. What it put into the log is applied by this one, too.
#[test]
fn what_is_beyond_the_limits_is_refused_before_the_log_and_applied_from_it() {
    let mut machine = Machine::default();
    for command in Times(2).commands() {
        let has_limits = !matches!(
            command,
            Command::RaiseVersion { .. }
                | Command::Renew { .. }
                | Command::Attach { .. }
                | Command::Compact { .. }
                | Command::CancelWait { .. }
                | Command::Tick
        );
        let refused = look(&command);
        assert_eq!(refused.is_err(), has_limits, "{}: {refused:?}", command.kind());
        apply(&mut machine, 1, Limits::NONE, &command);
    }
    assert_eq!(machine.counts().sessions, 1, "one of two was closed");

    let txn = Command::Txn(Times(2).txn());
    assert_eq!(look(&txn), Err(Unfit::Limit));
    assert!(matches!(apply(&mut machine, 2, Limits::NONE, &txn), Reply::Committed(_)));
    apply(&mut machine, 4 * u64::from(TTL_MS_MAX), Limits::NONE, &Command::Tick);
    assert_eq!(machine.counts().sessions, 0);
}
