//! A session of ZooKeeper's client protocol over the simulated network: frames, pings, and since when its server has not answered.
//!
//! It judges what comes by itself: zxids never fall, whichever node answers.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use rand::{Rng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};
use turmoil::net::TcpStream;

use crate::{
    contenders::{Contention, TTL, in_time},
    jute::{JuteAnswer, JuteReader, JuteRequest, JuteWriter, XID_AUTH, XID_EVENT},
    network, system,
};

/// A server that leaves a request without an answer for this long is left.
const SILENCE: Duration = Duration::from_secs(1);
/// Pings, milliseconds after what was sent last. The longest pause is shorter than a third of the timeout, by what a network may take.
const PING_MS: std::ops::Range<u64> = 300..600;
const PASSWORD_BYTES: usize = 16;

/// What a client must know of its session to attach it.
#[derive(Clone, Debug)]
pub(crate) struct SessionKey {
    /// 0 asks for a new one.
    pub(crate) id: i64,
    password: Vec<u8>,
    /// The newest zxid that its client has seen.
    told: i64,
}

impl SessionKey {
    /// The key that asks for a new session, of a client that has seen this zxid.
    pub(crate) fn fresh(told: i64) -> Self {
        Self { id: 0, password: vec![0; PASSWORD_BYTES], told }
    }

    /// The key that asks for a new session, of the same client.
    pub(crate) fn forgotten(&self) -> Self {
        Self::fresh(self.told)
    }
}

/// What was sent and is not answered.
struct SentRequest {
    xid: i32,
    op: i32,
    at: Duration,
}

/// A session, and the connection that it is attached to.
pub(crate) struct ZnodeSession {
    key: SessionKey,
    contention: Arc<Contention>,
    /// `None` once the connection is over.
    line: Option<TcpStream>,
    input: Vec<u8>,
    last_xid: i32,
    pending: VecDeque<SentRequest>,
    /// When the last request was sent that is answered.
    answered: Duration,
    ping_at: Duration,
    /// The paths of the events that came.
    events: Vec<String>,
}

impl ZnodeSession {
    /// Opens a session, or attaches one. `None`: there was no answer. `Some(None)`: the session is over.
    pub(crate) async fn connect(address: &str, key: SessionKey, contention: &Arc<Contention>) -> Option<Option<Self>> {
        let sent = system::elapsed();
        let mut connect = JuteWriter::default();
        let timeout_ms = i32::try_from(TTL.as_millis()).expect("a few seconds");
        connect.int(0).long(key.told).int(timeout_ms).long(key.id).buffer(Some(&key.password)).boolean(false);

        let exchange = async {
            let mut line = network::open(address).await.ok()?;
            let mut input = Vec::new();
            send(&mut line, &connect.0).await?;
            let answer = receive(&mut line, &mut input).await?;
            Some((line, input, answer))
        };
        let (line, input, answer) = in_time(exchange).await?;
        let mut answer = JuteReader(&answer);
        let (_protocol, granted_ms, id) = (answer.int()?, answer.int()?, answer.long()?);
        let password = answer.buffer()??;
        if granted_ms == 0 {
            return Some(None);
        }
        if granted_ms != timeout_ms {
            contention.complain(format!("a session of {timeout_ms} ms was granted {granted_ms} ms"));
        }
        Some(Some(Self {
            key: SessionKey { id, password, told: key.told },
            contention: Arc::clone(contention),
            line: Some(line),
            input,
            last_xid: 0,
            pending: VecDeque::new(),
            answered: sent,
            ping_at: sent,
            events: Vec::new(),
        }))
    }

    pub(crate) fn key(&self) -> &SessionKey {
        &self.key
    }

    /// When the last request was sent that is answered.
    pub(crate) fn answered(&self) -> Duration {
        self.answered
    }

    /// The paths of the events that came since the last time that this was asked.
    pub(crate) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    /// Sends a request, and waits for its answer. `None`: the connection is over.
    pub(crate) async fn call(&mut self, request: &JuteRequest) -> Option<Result<JuteAnswer, i32>> {
        self.send(request).await?;
        loop {
            let answer = self.receive(Duration::MAX).await?;
            if let Some(answer) = answer.filter(|_| self.pending.is_empty()) {
                return Some(answer);
            }
        }
    }

    /// Sends requests, and waits for the answers to all of them. `None`: the connection is over.
    pub(crate) async fn call_all(&mut self, requests: &[JuteRequest]) -> Option<Vec<Result<JuteAnswer, i32>>> {
        for request in requests {
            self.send(request).await?;
        }
        let mut answers = Vec::new();
        while !self.pending.is_empty() {
            answers.extend(self.receive(Duration::MAX).await?);
        }
        // What was sent before them is answered before them.
        Some(answers.split_off(answers.len().checked_sub(requests.len())?))
    }

    /// Pings until this moment, or until an event comes, and says of each answer when its request was sent. Returns whether there is an
    /// event. `None`: the connection is over.
    pub(crate) async fn idle(
        &mut self,
        until: Duration,
        random: &mut StdRng,
        heard: &mut dyn FnMut(Duration),
    ) -> Option<bool> {
        loop {
            let now = system::elapsed();
            if !self.events.is_empty() || now >= until {
                return Some(!self.events.is_empty());
            }
            if self.pending.is_empty() && now >= self.ping_at {
                self.send(&JuteRequest::Ping).await?;
                self.ping_at = now + Duration::from_millis(random.random_range(PING_MS));
            }

            let next = if self.pending.is_empty() { until.min(self.ping_at) } else { until };
            if self.receive(next).await?.is_some() {
                heard(self.answered);
            }
        }
    }

    async fn send(&mut self, request: &JuteRequest) -> Option<()> {
        let xid = request.fixed_xid().unwrap_or_else(|| {
            self.last_xid += 1;
            self.last_xid
        });
        let mut payload = JuteWriter::default();
        payload.int(xid).int(request.op());
        request.write(&mut payload);
        let at = system::elapsed();
        self.pending.push_back(SentRequest { xid, op: request.op(), at });
        self.ping_at = at + Duration::from_millis(PING_MS.start);

        let sent = send(self.line.as_mut()?, &payload.0).await;
        if sent.is_none() {
            self.line = None;
        }
        sent
    }

    /// What comes until this moment: an answer, or nothing or an event. `None`: the connection is over, or the server is silent.
    async fn receive(&mut self, until: Duration) -> Option<Option<Result<JuteAnswer, i32>>> {
        let silent_at = self.pending.front().map_or(Duration::MAX, |first| first.at + SILENCE);
        let limit = silent_at.min(until).saturating_sub(system::elapsed());
        let line = self.line.as_mut()?;
        let Ok(received) = timeout(limit, receive(line, &mut self.input)).await else {
            if system::elapsed() < silent_at {
                return Some(None);
            }
            self.line = None;
            return None;
        };

        let taken = received.and_then(|payload| self.take(&payload));
        if taken.is_none() {
            self.line = None;
        }
        taken
    }

    /// Takes a frame. `None`: it is none that can come.
    fn take(&mut self, payload: &[u8]) -> Option<Option<Result<JuteAnswer, i32>>> {
        let mut input = JuteReader(payload);
        let (xid, zxid, error) = (input.int()?, input.long()?, input.int()?);
        if xid == XID_EVENT {
            let (_kind, _state) = (input.int()?, input.int()?);
            self.events.push(input.text()?);
            return Some(None);
        }

        let SentRequest { xid: expected, op, at } = self.pending.pop_front()?;
        let told = self.key.told;
        // As ZooKeeper's, the reply to an `auth` has no zxid.
        if xid != expected || zxid < told && xid != XID_AUTH {
            let what = format!("a reply to {expected} has the number {xid} and zxid {zxid} after {told}");
            self.contention.complain(what);
        }
        self.key.told = zxid.max(told);
        self.answered = at;
        if error != 0 {
            return Some(Some(Err(error)));
        }
        JuteAnswer::read(op, input.0).map(|answer| Some(Ok(answer)))
    }
}

/// Sends a payload with its length before it.
async fn send(line: &mut TcpStream, payload: &[u8]) -> Option<()> {
    let mut frame = JuteWriter::default();
    frame.buffer(Some(payload));
    line.write_all(&frame.0).await.ok()
}

/// The payload of the next frame. `None`: the connection is over. Dropping the future loses nothing.
async fn receive(line: &mut TcpStream, input: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some((length, rest)) = input.split_first_chunk()
            && let length = u32::from_be_bytes(*length) as usize
            && rest.len() >= length
        {
            let payload = rest[..length].to_vec();
            input.drain(..size_of::<u32>() + length);
            return Some(payload);
        }
        if line.read_buf(input).await.ok()? == 0 {
            return None;
        }
    }
}
