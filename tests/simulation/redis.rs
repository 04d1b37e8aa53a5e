//! Redis' clients in a simulated run: contenders for locks by the shapes of Redis' lock libraries, at the nodes' real port for it.
//!
//! A lock is a string that `SET … NX PX` creates, also within `MULTI`, after `WATCH`, or by a script; or a hash, as Redisson's are. It is
//! extended and released by scripts that compare, by one that a node knows by its shape and one that it must run, or by `WATCH`. Some
//! holders of a string hand it over in place: they give it the value of the next holder, and no other client can come between. A holder
//! whose connection breaks extends its lock by another one, however late that is.

use std::{io, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream},
    time::{sleep, timeout},
};
use turmoil::net::TcpStream;

use crate::{
    contenders::{Attempt, Contender, HeldLock, TTL, in_time},
    network,
    protocols::{ContendedProtocol, ContenderParts},
    system,
};

/// The requests that nodes send each other for these clients.
pub(crate) const REQUESTS: [&str; 2] = ["run_unit", "commit_each"];
const LOCKS: u32 = 2;
/// How often a holder asks for more time, if there is no answer.
const EXTEND_TRIES: u32 = 8;
/// Bytes of a reply, at the most.
const REPLY_BYTES_MAX: u64 = 1 << 16;

/// The scripts of libraries. The second of two does the same, and is not known by its shape.
const ACQUIRE: &str = "if redis.call('exists', KEYS[1]) == 0 then redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1 end return 0";
const EXTEND: [&str; 2] = [
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end",
    "local seen = redis.call('get', KEYS[1]) for i = 1, 3 do if seen ~= ARGV[1] then return 0 end end \
     redis.call('pexpire', KEYS[1], ARGV[2]) return redis.call('exists', KEYS[1])",
];
const RELEASE: [&str; 2] = [
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    "local seen = redis.call('get', KEYS[1]) for i = 1, 3 do if seen ~= ARGV[1] then return 0 end end \
     redis.call('del', KEYS[1]) return 1 - redis.call('exists', KEYS[1])",
];
const HAND_OVER: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('set', KEYS[1], ARGV[2], 'XX', 'PX', ARGV[3]) return 1 end \
     return 0";
/// Redisson's.
const HASH_ACQUIRE: &str = "if (redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[1]) == 1) then \
     redis.call('hincrby', KEYS[1], ARGV[1], 1); redis.call('pexpire', KEYS[1], ARGV[2]); return 1; end; return 0;";
const HASH_EXTEND: &str = "if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then redis.call('pexpire', KEYS[1], ARGV[2]); return 1; end; return 0;";
const HASH_RELEASE: &str = "if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0; end; \
     local counter = redis.call('hincrby', KEYS[1], ARGV[1], -1); if counter > 0 then return 0; end; \
     redis.call('del', KEYS[1]); redis.call('publish', KEYS[1] .. ':channel', 'free'); return 1;";

/// How a library takes a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    SetNx,
    Multi,
    Watch,
    Script,
    Hash,
}

impl Shape {
    const ALL: [Self; 5] = [Self::SetNx, Self::Multi, Self::Watch, Self::Script, Self::Hash];
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Line(String),
    Refusal(String),
    Number(i64),
    Bulk(Option<String>),
    Array(Option<Vec<Self>>),
}

/// Contends until the run is over.
pub(crate) async fn contend(parts: ContenderParts) {
    let ContenderParts { seats, mut contender, mut random, finish } = parts;
    while !finish.is_cancelled() {
        let seat = random.random_range(1..=seats);
        // What is not answered ends the connection: whatever comes later would be taken for the next answer.
        if let Some(mut connection) = in_time(async { Connection::open(seat).await.ok() }).await {
            while !finish.is_cancelled() {
                if take_turn(seats, &mut connection, &mut contender, &mut random).await.is_none() {
                    break;
                }
                sleep(Duration::from_millis(random.random_range(10..250))).await;
            }
        }
        sleep(Duration::from_millis(random.random_range(10..250))).await;
    }
}

/// Holds a lock once, or finds that another one does. `None`: some answer did not come.
async fn take_turn(
    seats: u64,
    connection: &mut Connection,
    contender: &mut Contender,
    random: &mut StdRng,
) -> Option<()> {
    let shape = *Shape::ALL.choose(random).expect("it is not empty");
    let number = random.random_range(0..LOCKS);
    let kind = if shape == Shape::Hash { "hash" } else { "string" };
    let key = format!("contended/{kind}/{number}");
    let attempt = contender.ask(&format!("redis/0/{key}"));
    let attempt = if shape == Shape::Hash { attempt } else { attempt.recorded() };
    let value = attempt.who().to_owned();
    let is_among_others = random.random();
    let mut lock =
        LockClient { connection, key, value, is_hash: shape == Shape::Hash, is_among_others, is_order_kept: true };

    let acquired = lock.acquire(shape, attempt).await?;
    if !lock.is_order_kept {
        let who = &lock.value;
        contender
            .contention()
            .complain(format!("{who} sent commands together, and a later one took effect before one of them"));
    }
    let Some(mut held) = acquired else {
        // As a client that believes in a lock which it never had.
        if random.random_ratio(1, 3) && lock.release(random.random_range(0..3)).await? {
            let LockClient { key, value, .. } = &lock;
            contender.contention().complain(format!("{value} did not hold {key}, and was told that it released it"));
        }
        return Some(());
    };
    for _ in 0..random.random_range(0..4) {
        sleep(contender.pause(random)).await;
        let (sent, is_own) = lock.extend_anyhow(seats, random).await?;
        if !is_own {
            held.lost();
            return Some(());
        }
        held.renewed(sent);
    }
    if shape != Shape::Hash && random.random_ratio(1, 3) {
        let next = contender.ask(&format!("redis/0/{}", lock.key)).recorded();
        let Some(handed_over) = lock.hand_over(held, next, random.random()).await? else { return Some(()) };
        held = handed_over;
    }

    // Some holders fall silent: their locks pass on when their leases end.
    if random.random_range(0..100) < 70 {
        sleep(contender.pause(random)).await;
        let releasing = held.release();
        if lock.release(random.random_range(0..3)).await? {
            releasing.done();
        } else {
            releasing.was_lost();
        }
    }
    Some(())
}

/// One lock, over one connection.
struct LockClient<'c> {
    connection: &'c mut Connection,
    key: String,
    value: String,
    is_hash: bool,
    /// Whether it takes the lock by a command that is sent together with others.
    is_among_others: bool,
    /// Whether these took effect in their order.
    is_order_kept: bool,
}

impl LockClient<'_> {
    async fn acquire(&mut self, shape: Shape, attempt: Attempt) -> Option<Option<HeldLock>> {
        let ms = TTL.as_millis().to_string();
        let (key, value) = (self.key.clone(), self.value.clone());
        let set: &[&str] = &["SET", &key, &value, "NX", "PX", &ms];
        let replied = match shape {
            // As a library sends that has one connection for many tasks.
            Shape::SetNx if self.is_among_others => {
                let own = format!("own/{value}");
                let (put, remove) = (["SETNX", &own, &value], ["EVAL", RELEASE[0], "1", &own, &value]);
                let replies = self.connection.pipeline(&[&put, set, &remove, &["DEL", &own]]).await?;
                let [put, replied, removed, left] = &replies[..] else { return None };
                let is_refused = [put, removed, left].iter().any(|reply| matches!(reply, Reply::Refusal(_)));
                self.is_order_kept =
                    is_refused || [put, removed, left] == [&Reply::Number(1), &Reply::Number(1), &Reply::Number(0)];
                replied.clone()
            }
            Shape::SetNx => self.connection.ask(set).await?,
            Shape::Script => self.connection.eval(ACQUIRE, &key, &[&value, &ms]).await?,
            Shape::Hash => self.connection.eval(HASH_ACQUIRE, &key, &[&value, &ms]).await?,
            Shape::Multi => {
                let told = format!("lockkeeper:token:{key}");
                let replies = self.connection.pipeline(&[&["MULTI"], set, &["GET", &told], &["EXEC"]]).await?;
                replies.last()?.first()
            }
            Shape::Watch => {
                let seen = self.connection.pipeline(&[&["WATCH", &key], &["GET", &key]]).await?;
                if seen.last() == Some(&Reply::Bulk(None)) {
                    let put: &[&str] = &["SET", &key, &value, "PX", &ms];
                    self.connection.pipeline(&[&["MULTI"], put, &["EXEC"]]).await?.last()?.first()
                } else {
                    self.connection.ask(&["UNWATCH"]).await?;
                    seen.last()?.clone()
                }
            }
        };
        match replied {
            Reply::Number(1) => {}
            Reply::Line(line) if line == "OK" => {}
            // There is no value where one is to be set, or the one of another; or the script found one.
            Reply::Bulk(_) | Reply::Number(_) => {
                attempt.busy();
                return Some(None);
            }
            // An error says that nothing was done; so does a transaction whose key has changed, perhaps to nothing.
            Reply::Refusal(_) | Reply::Array(_) | Reply::Line(_) => {
                attempt.unavailable();
                return Some(None);
            }
        }
        if self.is_hash {
            return Some(Some(attempt.granted(None)));
        }

        self.told_token(attempt).await
    }

    /// Reads the token of a lock that this client has. `None`: it has another value by now, or no answer came.
    async fn told_token(&mut self, attempt: Attempt) -> Option<Option<HeldLock>> {
        let (key, told) = (&self.key, format!("lockkeeper:token:{}", self.key));
        let replies = self.connection.pipeline(&[&["MULTI"], &["GET", key], &["GET", &told], &["EXEC"]]).await?;
        let Reply::Array(Some(found)) = replies.last()? else { return None };
        let [Reply::Bulk(Some(seen)), Reply::Bulk(Some(token))] = &found[..] else { return None };

        let token = token.parse().ok().filter(|_| *seen == self.value)?;
        Some(Some(attempt.granted(Some(token))))
    }

    /// Makes another one the holder, who has a token of its own.
    async fn hand_over(&mut self, held: HeldLock, next: Attempt, is_watched: bool) -> Option<Option<HeldLock>> {
        let ms = TTL.as_millis().to_string();
        let key = self.key.clone();
        let value = std::mem::replace(&mut self.value, next.who().to_owned());
        let releasing = held.release();
        let is_handed_over = if is_watched {
            let seen = self.connection.pipeline(&[&["WATCH", &key], &["GET", &key]]).await?;
            if seen.last() == Some(&Reply::Bulk(Some(value))) {
                let set: &[&str] = &["SET", &key, &self.value, "XX", "PX", &ms];
                let replies = self.connection.pipeline(&[&["MULTI"], set, &["EXEC"]]).await?;
                // Without a list the key has changed: by its own deadline, as far as this client knows.
                let Reply::Array(Some(done)) = replies.last()? else { return None };
                done[..] == [Reply::Line("OK".to_owned())]
            } else {
                self.connection.ask(&["UNWATCH"]).await?;
                false
            }
        } else {
            self.connection.eval(HAND_OVER, &key, &[&value, &self.value, &ms]).await?.compared()?
        };

        if !is_handed_over {
            releasing.was_lost();
            next.busy();
            return Some(None);
        }
        releasing.done();
        self.told_token(next).await
    }

    /// Extends the lock, by one connection after the other until there is an answer. Returns when it sent what was answered, and whether
    /// the lock was still its own.
    async fn extend_anyhow(&mut self, seats: u64, random: &mut StdRng) -> Option<(Duration, bool)> {
        let mut is_broken = false;
        for _ in 0..EXTEND_TRIES {
            if is_broken {
                sleep(Duration::from_millis(random.random_range(50..250))).await;
                let seat = random.random_range(1..=seats);
                let opened = in_time(async { Connection::open(seat).await.ok() }).await;
                let Some(connection) = opened else { continue };
                *self.connection = connection;
            }

            let sent = system::elapsed();
            if let Some(is_own) = self.extend(random.random()).await {
                return Some((sent, is_own));
            }
            is_broken = true;
        }
        None
    }

    /// Whether the lock was still its own.
    async fn extend(&mut self, odd: bool) -> Option<bool> {
        let script = if self.is_hash { HASH_EXTEND } else { EXTEND[usize::from(odd)] };
        let ms = TTL.as_millis().to_string();
        self.connection.eval(script, &self.key, &[&self.value, &ms]).await?.compared()
    }

    /// Whether the lock was still its own.
    async fn release(&mut self, way: usize) -> Option<bool> {
        if self.is_hash {
            return self.connection.eval(HASH_RELEASE, &self.key, &[&self.value]).await?.compared();
        }
        if let Some(script) = RELEASE.get(way) {
            return self.connection.eval(script, &self.key, &[&self.value]).await?.compared();
        }
        let seen = self.connection.pipeline(&[&["WATCH", &self.key], &["GET", &self.key]]).await?;
        let Reply::Bulk(value) = seen.last()? else { return None };
        if value.as_ref() != Some(&self.value) {
            self.connection.ask(&["UNWATCH"]).await?;
            return Some(false);
        }

        let replies = self.connection.pipeline(&[&["MULTI"], &["DEL", &self.key], &["EXEC"]]).await?;
        // Without a list it has changed meanwhile: by its own deadline, as far as this client knows.
        let Reply::Array(Some(done)) = replies.last()? else { return None };
        Some(done[..] == [Reply::Number(1)])
    }
}

impl Reply {
    /// The first reply of a transaction that ran; otherwise the transaction's own.
    fn first(&self) -> Self {
        let Self::Array(Some(replies)) = self else { return self.clone() };
        replies.first().unwrap_or(self).clone()
    }

    /// Whether a script that compares found what it looked for. `None`: it did not run.
    fn compared(&self) -> Option<bool> {
        let Self::Number(number) = self else { return None };
        Some(*number == 1)
    }
}

/// The bytes of a command.
fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    words.iter().for_each(|word| bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes()));
    bytes
}

/// A connection of a client to the port of a node.
pub(crate) struct Connection(BufStream<TcpStream>);

impl Connection {
    pub(crate) async fn open(seat: u64) -> io::Result<Self> {
        Ok(Self(BufStream::new(network::open(&ContendedProtocol::Redis.seat_address(seat)).await?)))
    }

    async fn eval(&mut self, script: &str, key: &str, arguments: &[&str]) -> Option<Reply> {
        let words = [&["EVAL", script, "1", key][..], arguments].concat();
        self.ask(&words).await
    }

    /// Sends one command. `None`: it was not answered in time.
    pub(crate) async fn ask(&mut self, words: &[&str]) -> Option<Reply> {
        self.pipeline(&[words]).await?.pop()
    }

    /// Sends one command. `None`: it was not answered within this time.
    pub(crate) async fn ask_within(&mut self, words: &[&str], limit: Duration) -> Option<Reply> {
        let exchange = async {
            self.send(words).await.ok()?;
            self.reply().await.ok()
        };
        timeout(limit, exchange).await.ok().flatten()
    }

    /// Sends one command.
    pub(crate) async fn send(&mut self, words: &[&str]) -> io::Result<()> {
        self.0.write_all(&request(words)).await?;
        self.0.flush().await
    }

    /// Sends requests at once. `None`: not all were answered in time.
    async fn pipeline(&mut self, requests: &[&[&str]]) -> Option<Vec<Reply>> {
        let bytes: Vec<_> = requests.iter().flat_map(|words| request(words)).collect();
        let exchange = async {
            self.0.write_all(&bytes).await.ok()?;
            self.0.flush().await.ok()?;
            let mut replies = Vec::new();
            for _ in requests {
                replies.push(self.reply().await.ok()?);
            }
            Some(replies)
        };
        in_time(exchange).await
    }

    /// Reads the next reply, or the next message.
    pub(crate) fn reply(&mut self) -> BoxFuture<'_, io::Result<Reply>> {
        async move {
            let mut line = String::new();
            (&mut self.0).take(REPLY_BYTES_MAX).read_line(&mut line).await?;
            let wrong = || io::Error::from(io::ErrorKind::InvalidData);
            let rest = line.get(1..).ok_or(io::ErrorKind::UnexpectedEof)?.trim_end().to_owned();
            let number = || rest.parse::<i64>().map_err(|_| wrong());
            Ok(match line.as_bytes()[0] {
                b'+' => Reply::Line(rest),
                b'-' => Reply::Refusal(rest),
                b':' => Reply::Number(number()?),
                b'$' => Reply::Bulk(match usize::try_from(number()?) {
                    Err(_) => None,
                    Ok(length) => {
                        let mut bytes = vec![0; length + 2];
                        self.0.read_exact(&mut bytes).await?;
                        bytes.truncate(length);
                        Some(String::from_utf8(bytes).map_err(|_| wrong())?)
                    }
                }),
                b'*' => Reply::Array(match usize::try_from(number()?) {
                    Err(_) => None,
                    Ok(length) => {
                        let mut replies = Vec::new();
                        for _ in 0..length {
                            replies.push(self.reply().await?);
                        }
                        Some(replies)
                    }
                }),
                _ => return Err(wrong()),
            })
        }
        .boxed()
    }
}
