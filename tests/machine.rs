//! The machine's specification: golden scripts, one behaviour a file, in `tests/machine/scripts`.
//!
//! A script gives commands and, below `---`, their replies and events. Outputs are recorded, never typed:
//! `UPDATE_GOLDENFILES=1 cargo test --test pure machine::`; then read the diff.
//!
//! Every command that changes the table takes `at=`, the stamp in milliseconds; without it no time passes. Sessions go by name.
//!
//! ```text
//! open ann [ttl=1000] [label=ann] [from=IP:PORT]
//! renew ann ...                            close ann                          attach ann
//! set-owner ann owner=NAME
//! acquire ann lock[@shared|@PERMITS] ... [wait=MS|forever] [data=TEXT] [keep=true] [delay=MS]
//!     [exists=true]
//! release ann token=N|acquire=REQUEST      update ann lock token=N [data=TEXT] [keep=true]
//!                                          ... with [req=ID [lowest=ID] [kept="ID,.."]] for any of these three
//! cancel TICKET [repeats=N]                force lock reason=TEXT [token=N] [now=true] [after=N] [up_to=N]
//! remove lock ticket=N                     lift lock                         drop [PREFIX] [after=lock]
//! resize lock permits=N                    tick                              raise VERSION
//! compact REVISION
//! txn [by=SESSION/NUMBER [closes=true]] [fallback=true] ["if KEY PROPERTY =|!=|<|> VALUE"] ... ["then OPERATION"] ... ["else .."] ...
//!     properties: created, modified, version, value, lease (a session, or none)
//!     operations: put KEY VALUE [LEASE [kept] [as LOCK]], put KEY VALUE for MS [as LOCK LABEL], put KEY VALUE extended MS,
//!         put KEY VALUE at STAMP, child|numbered PARENT and what follows put, expire KEY for MS|at STAMP|never, get KEY, delete KEY,
//!         clear FROM TO (- for no end), renew SESSION
//! entries [FROM] [TO]: the entries from one key up to another, last of all the revision of the keyspace
//! events REVISION: those after it            past REVISION: the entries as they were at it
//! limits [work=N] [grants=N] [table=BYTES] [session=BYTES]: of the batches from here on
//! bytes: the bytes of the table, and of each session                usage NAME: what this owner has
//!
//! show lock [size=N] [holders_after=N] [waiters_after=N]            holder lock token=N
//! list [PREFIX] [after=lock]               session ann              sessions [after=ann]
//! counts                                   waits                    next
//! churn ann lock times=N req=ID [lowest=ID] [kept="ID,.."]: acquires and releases the lock N times, each time with the next two
//!     request ids; without lowest=, each request names its own id as the lowest
//! crowd ann lock times=N wait=MS|forever: queues N waits, without request ids
//! snapshot: continues with a table that is restored from its records          dump: the records
//! ```

mod format;

use std::{error::Error, fs, panic, path::Path, str::FromStr};

use goldenscript::{ArgumentConsumer, Command as Line};
use lockkeeper::machine::*;

use self::format::{session_id, show};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[test]
fn scripts() {
    let mut paths: Vec<_> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/scripts"))
        .expect("the scripts are part of the source")
        .map(|entry| entry.expect("the directory can be read").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 30, "only {} scripts were found", paths.len());
    let fails = |path: &Path| {
        let run = || goldenscript::run(&mut Runner::default(), path);
        match panic::catch_unwind(run) {
            Ok(Ok(())) => false,
            Ok(Err(error)) => {
                eprintln!("{}: {error}", path.display());
                true
            }
            Err(_) => true,
        }
    };
    let failed: Vec<_> = paths.iter().filter(|path| fails(path)).collect();
    assert!(failed.is_empty(), "scripts that fail: {failed:#?}");
}

#[derive(Default)]
struct Runner {
    machine: Machine,
    limits: Limits,
}

impl goldenscript::Runner for Runner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &goldenscript::Context) -> Result<String> {
        let mut arguments = Arguments(line.consume_args());
        let output = match self.look(&line.name, &mut arguments)? {
            Some(output) => output,
            None if line.name == "limits" => self.limit(&mut arguments)?,
            None if line.name == "churn" => self.churn(&mut arguments)?,
            None if line.name == "crowd" => self.crowd(&mut arguments)?,
            None => {
                let now = self.machine.now().0;
                let stamp = arguments.key("at")?.unwrap_or(now);
                // A wall clock that is far from cluster time reveals where one is used in place of the other.
                let time = Time { stamp: Stamp(stamp), wall: WallTime(1_000_000 + stamp) };
                let command = command(&line.name, &mut arguments)?;
                let who = match &command {
                    Command::Open { session, .. }
                    | Command::Close { session, .. }
                    | Command::Attach { session }
                    | Command::SetOwner { session, .. }
                    | Command::Session { session, .. } => {
                        format!("{}: ", show(session))
                    }
                    Command::Renew { .. }
                    | Command::CancelWait { .. }
                    | Command::ForceRelease(_)
                    | Command::RemoveWaiter { .. }
                    | Command::LiftDelay { .. }
                    | Command::DropData { .. }
                    | Command::Resize { .. }
                    | Command::RaiseVersion { .. }
                    | Command::Txn(_)
                    | Command::Compact { .. }
                    | Command::Note(_)
                    | Command::BeginAudit
                    | Command::Probe
                    | Command::Tick => String::new(),
                };
                let mut events = Vec::new();
                let reply = self.machine.apply_batch(time, self.limits, [command], &mut events).remove(0);
                self.machine.check()?;
                let events: String = events.iter().map(|event| format!("  {}\n", show(event))).collect();
                format!("{who}{}\n{events}", show(&reply))
            }
        };
        arguments.0.reject_next()?;
        Ok(output)
    }
}

impl Runner {
    fn limit(&mut self, arguments: &mut Arguments<'_>) -> Result<String> {
        let usual = Limits::default();
        self.limits = Limits {
            work: arguments.key("work")?.unwrap_or(usual.work),
            grants_per_session: arguments.key("grants")?.unwrap_or(usual.grants_per_session),
            table_bytes: arguments.key("table")?.unwrap_or(usual.table_bytes),
            session_bytes: arguments.key("session")?.unwrap_or(usual.session_bytes),
        };
        Ok(String::new())
    }

    /// A client that continues with other requests.
    fn churn(&mut self, arguments: &mut Arguments<'_>) -> Result<String> {
        let session = session_id(arguments.next("session")?);
        let acquire = acquire(arguments)?;
        let (times, mut id): (u64, u64) = (arguments.required("times")?, arguments.required("req")?);
        let lowest = arguments.key("lowest")?;
        let kept = ids(arguments.0.take_key("kept").unwrap_or_default())?;
        let time = Time { stamp: self.machine.now(), wall: WallTime(0) };
        let mut ask = |operation| {
            let request = Some(Request { id, open: OpenIds::new(lowest.unwrap_or(id), kept.clone())? });
            id += 1;
            let command = Command::Session { session, request, operation };
            Ok::<_, Invalid>(self.machine.apply(time, command, &mut Vec::new()))
        };
        for turn in 0..times {
            let acquired = ask(Operation::Acquire(acquire.clone()))?;
            let Reply::Acquired(WaitEnd::Granted(grant)) = acquired else {
                return Ok(format!("after {turn} times: {}\n", show(&acquired)));
            };
            let released = ask(Operation::Release(Target::Grant(grant.token)))?;
            if released != Reply::Released(Released::Grant) {
                return Ok(format!("after {turn} times: {}\n", show(&released)));
            }
        }
        Ok(format!("{times} times\n"))
    }

    /// A client whose acquires accumulate.
    fn crowd(&mut self, arguments: &mut Arguments<'_>) -> Result<String> {
        let session = session_id(arguments.next("session")?);
        let times: u64 = arguments.required("times")?;
        let operation = Operation::Acquire(acquire(arguments)?);
        let time = Time { stamp: self.machine.now(), wall: WallTime(0) };
        for turn in 0..times {
            let command = Command::Session { session, request: None, operation: operation.clone() };
            let reply = self.machine.apply(time, command, &mut Vec::new());
            if !matches!(reply, Reply::Queued(_)) {
                return Ok(format!("after {turn} times: {}\n", show(&reply)));
            }
        }
        Ok(format!("{times} times\n"))
    }

    /// Commands that read only; `None` for any other.
    fn look(&mut self, name: &str, arguments: &mut Arguments<'_>) -> Result<Option<String>> {
        let lines = |lines: Vec<String>| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let machine = &self.machine;
        Ok(Some(match name {
            "show" => {
                let name = arguments.lock()?;
                let page = Page {
                    size: arguments.key("size")?.unwrap_or(1000),
                    holders_after: Token(arguments.key("holders_after")?.unwrap_or(0)),
                    waiters_after: Ticket(arguments.key("waiters_after")?.unwrap_or(0)),
                };
                show(&machine.lock(&name, page))
            }
            "holder" => {
                let name = arguments.lock()?;
                let token = Token(arguments.required("token")?);
                lines(vec![machine.holder(&name, token).map_or_else(|| "none".into(), |holder| show(&holder))])
            }
            "list" => {
                let prefix = arguments.0.next_pos().unwrap_or_default();
                let after = arguments.0.take_key("after").map(LockName::new).transpose()?;
                lines(machine.locks(prefix, after.as_ref()).map(|name| name.to_string()).collect())
            }
            "session" => {
                let id = session_id(arguments.next("session")?);
                let end = |end| format!("ended: {}", show(&end));
                let view = machine.session(id).map(|view| show(&view));
                assert_eq!(view.is_none(), machine.session_end(id).is_some(), "a session has either a view or an end");
                lines(vec![view.or(machine.session_end(id).map(end)).unwrap_or_default()])
            }
            "sessions" => {
                let after = arguments.0.take_key("after").map(session_id);
                lines(machine.sessions(after).map(|view| show(&view)).collect())
            }
            "counts" => {
                let Counts { sessions, locks, waiters, grants, entries } = machine.counts();
                let entries = if entries > 0 { format!(" entries={entries}") } else { String::new() };
                format!("sessions={sessions} locks={locks} waiters={waiters} grants={grants}{entries}\n")
            }
            "bytes" => {
                let own = machine.sessions(None).map(|view| format!("{} {}", show(&view.session), view.bytes));
                lines(std::iter::once(format!("all {}", machine.bytes())).chain(own).collect())
            }
            "usage" => {
                let owner = Identity::new(arguments.next("identity")?)?;
                let Usage { sessions, locks, waiters, bytes } = machine.usage(&owner);
                format!("{owner} sessions={sessions} locks={locks} waiters={waiters} bytes={bytes}\n")
            }
            "waits" => lines(machine.waits().map(|ticket| format!("ticket={}", ticket.0)).collect()),
            "next" => machine.next_deadline().map_or_else(|| "never\n".into(), |at| format!("at={}\n", at.0)),
            "entries" => {
                let mut key = || arguments.0.next_pos().map(|key| Key::new(key.as_bytes())).transpose();
                let range = KeyRange { from: key()?, to: key()? };
                let forwards: Vec<_> = machine.entries(&range).collect();
                let backwards: Vec<_> = machine.entries(&range).rev().collect();
                assert!(forwards.iter().eq(backwards.iter().rev()), "another order from the end");
                let entries = forwards.iter().map(|(key, entry)| format!("{}: {}", show(*key), show(&**entry)));
                lines(entries.chain([format!("revision={}", machine.revision().0)]).collect())
            }
            "events" => {
                let after = Revision(arguments.next("revision")?.parse()?);
                match machine.history().after(after, None) {
                    Ok(events) => lines(events.map(|event| show(&**event)).collect()),
                    Err(error) => format!("{error}\n"),
                }
            }
            "past" => {
                let revision = Revision(arguments.next("revision")?.parse()?);
                match machine.entries_at(&KeyRange::default(), revision) {
                    Ok(past) => lines(
                        past.iter(false).map(|(key, entry)| format!("{}: {}", show(key), show(&*entry))).collect(),
                    ),
                    Err(error) => format!("{error}\n"),
                }
            }
            "dump" => lines(machine.records().map(|record| show(&record)).collect()),
            "snapshot" => {
                let restored = Machine::from_records(machine.records())?;
                assert_eq!(restored.hash(), machine.hash(), "the restored table has another hash than the saved one");
                assert!(
                    restored.records().eq(machine.records()),
                    "the restored table has other records than the saved one"
                );
                let count = machine.records().count();
                self.machine = restored;
                format!("restored from {count} records\n")
            }
            _ => return Ok(None),
        }))
    }
}

fn command(name: &str, arguments: &mut Arguments<'_>) -> Result<Command> {
    Ok(match name {
        "open" => {
            let name = arguments.next("session")?;
            let ttl = Ttl::from_millis(arguments.key("ttl")?.unwrap_or(1000))?;
            let label = Label::new(arguments.0.take_key("label").unwrap_or(name))?;
            Command::Open {
                session: session_id(name),
                ttl,
                label,
                address: arguments.key("from")?,
                owner: arguments.key("owner")?,
            }
        }
        "renew" => Command::Renew { sessions: std::iter::from_fn(|| arguments.0.next_pos()).map(session_id).collect() },
        "set-owner" => {
            let session = session_id(arguments.next("session")?);
            Command::SetOwner { session, owner: arguments.key("owner")?.ok_or("owner= is missing")? }
        }
        "attach" => Command::Attach { session: session_id(arguments.next("session")?) },
        "close" => {
            Command::Close { session: session_id(arguments.next("session")?), by: arguments.key("by")?, reason: None }
        }
        "acquire" | "release" | "update" => {
            let session = session_id(arguments.next("session")?);
            let request = match arguments.key("req")? {
                Some(id) => Some(Request { id, open: open_ids(arguments)? }),
                None => None,
            };
            let operation = match name {
                "acquire" => Operation::Acquire(acquire(arguments)?),
                "release" => Operation::Release(target(arguments)?),
                _ => Operation::Update(Update {
                    name: arguments.lock()?,
                    token: Token(arguments.required("token")?),
                    data: arguments.data()?,
                    keep_data: arguments.key("keep")?.unwrap_or(false),
                }),
            };
            Command::Session { session, request, operation }
        }
        "cancel" => Command::CancelWait {
            ticket: Ticket(arguments.next("ticket")?.parse()?),
            repeats: arguments.key("repeats")?,
        },
        "force" => Command::ForceRelease(ForceRelease {
            name: arguments.lock()?,
            token: arguments.key("token")?.map(Token),
            after: Token(arguments.key("after")?.unwrap_or(0)),
            up_to: arguments.key("up_to")?.map(Token),
            reason: Reason::new(arguments.0.take_key("reason").unwrap_or_default())?,
            now: arguments.key("now")?.unwrap_or(false),
            by: arguments.key("by")?,
        }),
        "remove" => Command::RemoveWaiter {
            name: arguments.lock()?,
            ticket: Ticket(arguments.required("ticket")?),
            by: arguments.key("by")?,
        },
        "lift" => Command::LiftDelay { name: arguments.lock()?, by: arguments.key("by")? },
        "drop" => Command::DropData {
            prefix: arguments.0.next_pos().unwrap_or_default().to_owned(),
            after: arguments.0.take_key("after").map(LockName::new).transpose()?,
            by: arguments.key("by")?,
        },
        "resize" => Command::Resize {
            name: arguments.lock()?,
            permits: Permits::new(arguments.required("permits")?)?,
            by: arguments.key("by")?,
        },
        "txn" => transaction(arguments)?,
        "compact" => Command::Compact { revision: Revision(arguments.next("revision")?.parse()?) },
        "raise" => Command::RaiseVersion { to: Version(arguments.next("version")?.parse()?) },
        "tick" => Command::Tick,
        _ => return Err(format!("there is no command {name}").into()),
    })
}

fn acquire(arguments: &mut Arguments<'_>) -> Result<Acquire> {
    let wait = match arguments.0.take_key("wait") {
        None => Wait::Never,
        Some("forever") => Wait::Forever,
        Some(ms) => Wait::from_millis(ms.parse()?)?,
    };
    let lock_delay_ms = arguments.key("delay")?.unwrap_or(0);
    let data = arguments.data()?;
    let keep_data = arguments.key("keep")?.unwrap_or(false);
    let must_exist = arguments.key("exists")?.unwrap_or(false);
    let mut wants = Vec::new();
    while let Some(word) = arguments.0.next_pos() {
        let (name, mode) = match word.split_once('@') {
            None => (word, Mode::Exclusive),
            Some((name, "shared")) => (name, Mode::Shared),
            Some((name, permits)) => (name, Mode::Permit(Permits::new(permits.parse()?)?)),
        };
        wants.push(Want { name: LockName::new(name)?, mode, data: data.clone(), keep_data, must_exist });
    }
    Ok(Acquire::new(wants, wait, lock_delay_ms)?)
}

fn transaction(arguments: &mut Arguments<'_>) -> Result<Command> {
    let mut compares = Vec::new();
    let mut then = Vec::new();
    let mut otherwise = Vec::new();
    while let Some(word) = arguments.0.next_pos() {
        match word.split_once(' ') {
            Some(("if", text)) => compares.push(compare(text)?),
            Some(("then", text)) => then.push(txn_operation(text)?),
            Some(("else", text)) => otherwise.push(txn_operation(text)?),
            _ => return Err(format!("{word:?} is no part of a transaction").into()),
        }
    }
    let mut txn = Txn::new(compares, then, otherwise)?;
    if let Some(by) = arguments.0.take_key("by") {
        let (session, number) = by.split_once('/').ok_or("by= takes SESSION/NUMBER")?;
        let attached = Attached { session: session_id(session), number: number.parse()? };
        txn = if arguments.key("closes")?.unwrap_or(false) { txn.closing(attached) } else { txn.by_attached(attached) };
    }
    if arguments.key("fallback")?.unwrap_or(false) {
        txn = txn.falling_back();
    }
    Ok(Command::Txn(txn))
}

fn compare(text: &str) -> Result<Compare> {
    let words: Vec<_> = text.split(' ').collect();
    let [key, property, relation, value] = words[..] else { return Err(format!("{text:?} has not 4 words").into()) };
    let relation = match relation {
        "=" => Relation::Equal,
        "!=" => Relation::NotEqual,
        "<" => Relation::Less,
        ">" => Relation::Greater,
        _ => return Err(format!("{relation} is no relation").into()),
    };
    let operand = match property {
        "created" => Operand::Created(Revision(value.parse()?)),
        "modified" => Operand::Modified(Revision(value.parse()?)),
        "version" => Operand::Version(value.parse()?),
        "value" => Operand::Value(Value::new(value.as_bytes())?),
        "lease" => Operand::Lease((value != "none").then(|| session_id(value))),
        _ => return Err(format!("{property} is no property of an entry").into()),
    };
    // As `a..c`: a range.
    let (key, up_to) = key.split_once("..").map_or((key, None), |(key, up_to)| (key, Some(up_to)));
    let up_to = up_to.map(|key| Key::new(key.as_bytes())).transpose()?;
    Ok(Compare { key: Key::new(key.as_bytes())?, up_to, relation, operand })
}

fn txn_operation(text: &str) -> Result<TxnOperation> {
    let words: Vec<_> = text.split(' ').collect();
    let key = |text: &str| Key::new(text.as_bytes());
    let end = |text: &str| (text != "-").then(|| key(text)).transpose();
    let put_as = |name, value: &str, lease, claims| {
        let value = Value::new(value.as_bytes())?;
        Ok::<_, Invalid>(TxnOperation::Put(Put { key: key(name)?, value, lease, claims }))
    };
    let put = |name, value, lease| put_as(name, value, lease, None);
    let lease = |session, at_end| PutLease::Given(Lease { session: session_id(session), at_end });
    Ok(match words[..] {
        [kind @ ("child" | "numbered"), parent, ref rest @ ..] => {
            let TxnOperation::Put(put) = txn_operation(&format!("put {}", rest.join(" ")))? else {
                return Err(format!("{text:?} puts nothing").into());
            };
            TxnOperation::PutChild(PutChild { parent: key(parent)?, put, is_numbered: kind == "numbered" })
        }
        ["get", name] => TxnOperation::Get(key(name)?),
        ["put", name, value] => put(name, value, PutLease::None)?,
        ["put", name, value, "keeping"] => put(name, value, PutLease::Kept)?,
        ["put", name, value, "renewing"] => put(name, value, PutLease::Renewed)?,
        ["put", name, value, session] => put(name, value, lease(session, AtLeaseEnd::Delete))?,
        ["put", name, value, session, "kept"] => put(name, value, lease(session, AtLeaseEnd::Keep))?,
        ["put", name, value, session, "as", lock] => {
            put_as(name, value, lease(session, AtLeaseEnd::Delete), Some(LockName::new(lock)?.into()))?
        }
        ["put", name, value, session, "kept", "as", lock] => {
            put_as(name, value, lease(session, AtLeaseEnd::Keep), Some(LockName::new(lock)?.into()))?
        }
        ["put", name, value, "for", ms] => put(name, value, PutLease::Until(after(ms)?))?,
        ["put", name, value, "for", ms, "as", lock, label] => {
            let claims = PutClaim { lock: LockName::new(lock)?, label: Label::new(label)? };
            put_as(name, value, PutLease::Until(after(ms)?), Some(claims))?
        }
        ["put", name, value, "extended", ms] => put(name, value, PutLease::Extended(after(ms)?))?,
        ["put", name, value, "at", at] => put(name, value, PutLease::Until(EntryDeadline::At(Stamp(at.parse()?))))?,
        ["put", name, value, "remembered", ms] => {
            put(name, value, PutLease::Temporary(Lifetime::from_millis(ms.parse()?)?))?
        }
        ["expire", name, "for", ms] => TxnOperation::Expire(Expire { key: key(name)?, deadline: Some(after(ms)?) }),
        ["expire", name, "at", at] => {
            let deadline = Some(EntryDeadline::At(Stamp(at.parse()?)));
            TxnOperation::Expire(Expire { key: key(name)?, deadline })
        }
        ["expire", name, "never"] => TxnOperation::Expire(Expire { key: key(name)?, deadline: None }),
        ["delete", name] => TxnOperation::Delete(key(name)?),
        ["clear", from, to] => TxnOperation::DeleteRange(KeyRange { from: end(from)?, to: end(to)? }),
        ["open", session, ttl] => TxnOperation::Open(NewSession {
            session: session_id(session),
            ttl: Ttl::from_millis(ttl.parse()?)?,
            label: Label::new(session)?,
            address: None,
            owner: None,
        }),
        ["select", from, to] => {
            TxnOperation::Select(Select { range: KeyRange { from: end(from)?, to: end(to)? }, ..Select::default() })
        }
        ["select", from, to, by, limit] => TxnOperation::Select(Select {
            range: KeyRange { from: end(from)?, to: end(to)? },
            by: sort_by(by.trim_start_matches('-'))?,
            is_descending: by.starts_with('-'),
            limit: limit.parse()?,
            ..Select::default()
        }),
        _ => return Err(format!("{text:?} is no operation").into()),
    })
}

fn after(ms: &str) -> Result<EntryDeadline> {
    Ok(EntryDeadline::After(Lifetime::from_millis(ms.parse()?)?))
}

fn sort_by(text: &str) -> Result<SortBy> {
    Ok(match text {
        "key" => SortBy::Key,
        "created" => SortBy::Created,
        "modified" => SortBy::Modified,
        "version" => SortBy::Version,
        "value" => SortBy::Value,
        _ => return Err(format!("{text} is nothing to sort by").into()),
    })
}

/// All ids from 1 on are open, unless the script says otherwise.
fn open_ids(arguments: &mut Arguments<'_>) -> Result<OpenIds> {
    let lowest = arguments.key("lowest")?.unwrap_or(1);
    Ok(OpenIds::new(lowest, ids(arguments.0.take_key("kept").unwrap_or_default())?)?)
}

fn ids(list: &str) -> Result<Vec<u64>> {
    Ok(list.split(',').filter(|id| !id.is_empty()).map(str::parse).collect::<std::result::Result<_, _>>()?)
}

fn target(arguments: &mut Arguments<'_>) -> Result<Target> {
    match arguments.key("token")? {
        Some(token) => Ok(Target::Grant(Token(token))),
        None => Ok(Target::Acquire(arguments.required("acquire")?)),
    }
}

struct Arguments<'a>(ArgumentConsumer<'a>);

impl<'a> Arguments<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str> {
        self.0.next_pos().ok_or_else(|| format!("name a {what}").into())
    }

    fn lock(&mut self) -> Result<LockName> {
        Ok(LockName::new(self.next("lock")?)?)
    }

    fn data(&mut self) -> Result<Option<Data>> {
        Ok(self.0.take_key("data").map(|text| Data::new(text.as_bytes())).transpose()?)
    }

    fn key<T: FromStr<Err: Error + 'static>>(&mut self, key: &str) -> Result<Option<T>> {
        Ok(self.0.take_key(key).map(str::parse).transpose()?)
    }

    fn required<T: FromStr<Err: Error + 'static>>(&mut self, key: &str) -> Result<T> {
        self.key(key)?.ok_or_else(|| format!("give {key}=").into())
    }
}
