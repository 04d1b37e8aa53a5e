//! A client as one writes it in an hour from the list of calls: one node, single calls, no request ids, no renewals, and a deadline that
//! counts from the receipt. What a team without a client of its own would run.

use std::{collections::HashMap, time::Duration};

use lockkeeper_proto::v1::{
    AcquireRequest, CloseSessionRequest, OpenSessionRequest, ReleaseRequest, Want, acquire_request::Wait,
    acquire_response::Outcome, locks_client::LocksClient, release_request::Target, sessions_client::SessionsClient,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, stdin},
    time::{Instant, timeout},
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::{duration, say, text};

struct Naive {
    channel: Channel,
    ttl: Duration,
    attempt_limit: Duration,
    call_limit: Duration,
    session: Option<String>,
    /// Tokens, and until when they are trusted.
    held: HashMap<String, (u64, Instant)>,
}

pub(super) async fn run() -> Result<(), String> {
    let mut lines = BufReader::new(stdin()).lines();
    let mut client: Option<Naive> = None;
    while let Some(line) = lines.next_line().await.map_err(|error| error.to_string())? {
        let step: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
        if step["do"] == "connect" {
            let endpoints = text(&step, "endpoints");
            let first = endpoints.split(',').next().unwrap_or_default().to_owned();
            let endpoint = Endpoint::from_shared(format!("http://{first}")).map_err(|error| error.to_string())?;
            client = Some(Naive {
                channel: endpoint.connect_lazy(),
                ttl: duration(&step, "ttl_ms"),
                attempt_limit: duration(&step, "attempt_limit_ms"),
                call_limit: duration(&step, "call_limit_ms"),
                session: None,
                held: HashMap::new(),
            });
            say(&step, json!({ "outcome": "connected" }));
            continue;
        }
        let client = client.as_mut().ok_or("the first step is `connect`")?;
        let outcome = client.obey(&step).await;
        say(&step, outcome.unwrap_or_else(|status| show(&status)));
    }
    if let Some(client) = &mut client {
        // An error shows at the end of the scenario.
        let _ = client.close().await;
    }
    Ok(())
}

fn show(status: &Status) -> Value {
    let kind = if status.code() == Code::DeadlineExceeded { "unknown" } else { "refused" };
    json!({ "outcome": "failed", "kind": kind, "reason": null, "text": status.to_string() })
}

impl Naive {
    async fn obey(&mut self, step: &Value) -> Result<Value, Status> {
        match step["do"].as_str().unwrap_or_default() {
            "acquire" => self.acquire(step).await,
            "release" => self.release(step).await,
            "remaining" => Ok(self.remaining(step)),
            "close" => {
                self.close().await?;
                Ok(json!({ "outcome": "closed" }))
            }
            _ => Ok(json!({ "outcome": "unsupported" })),
        }
    }

    /// Repeats the call until an attempt is answered in time.
    async fn retry<T, F>(&self, call: impl Fn() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let began = Instant::now();
        loop {
            match timeout(self.attempt_limit, call()).await {
                Ok(answer) => return answer.map(tonic::Response::into_inner),
                Err(_) if began.elapsed() < self.call_limit => {}
                Err(_) => return Err(Status::deadline_exceeded("no answer")),
            }
        }
    }

    async fn open(&mut self) -> Result<String, Status> {
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let ttl_ms = u32::try_from(self.ttl.as_millis()).unwrap_or(u32::MAX);
        let session_id = format!("{:032x}", std::process::id());
        let request = OpenSessionRequest { session_id: session_id.clone(), ttl_ms, label: "naive".to_owned() };
        self.retry(|| {
            let (mut service, request) = (SessionsClient::new(self.channel.clone()), request.clone());
            async move { service.open(request).await }
        })
        .await?;
        self.session = Some(session_id.clone());
        Ok(session_id)
    }

    async fn acquire(&mut self, step: &Value) -> Result<Value, Status> {
        let session_id = self.open().await?;
        let names = step["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let locks = names.map(|name| Want { name: name.to_owned(), ..Want::default() }).collect();
        let wait = match step["wait_ms"].as_u64() {
            None => Some(Wait::WaitForever(true)),
            Some(0) => None,
            Some(ms) => Some(Wait::WaitMs(ms)),
        };
        let request = AcquireRequest { session_id, request: None, locks, wait, lock_delay_ms: 0 };
        let answer = self
            .retry(|| {
                let (mut service, request) = (LocksClient::new(self.channel.clone()), request.clone());
                async move { service.acquire(request).await }
            })
            .await?;
        match answer.outcome {
            Some(Outcome::Granted(grant)) => {
                self.held.insert(text(step, "lock"), (grant.token, Instant::now() + self.ttl));
                Ok(json!({ "outcome": "granted", "token": grant.token }))
            }
            Some(Outcome::Busy(busy) | Outcome::TimedOut(busy)) => Ok(json!({
                "outcome": "not-acquired",
                "waited": step["wait_ms"] != 0,
                "name": busy.name,
                "holder": busy.holder.map(|holder| holder.token),
                "queue": busy.queue_length,
            })),
            None => Err(Status::unknown("no outcome")),
        }
    }

    async fn release(&mut self, step: &Value) -> Result<Value, Status> {
        let (token, _) = self.held.remove(&text(step, "lock")).unwrap_or((0, Instant::now()));
        let session_id = self.session.clone().unwrap_or_default();
        let request = ReleaseRequest { session_id, request: None, target: Some(Target::Token(token)) };
        LocksClient::new(self.channel.clone()).release(request).await?;
        Ok(json!({ "outcome": "released" }))
    }

    fn remaining(&self, step: &Value) -> Value {
        let until = self.held.get(&text(step, "lock")).map(|(_, until)| *until);
        let left = until.map(|until| until.saturating_duration_since(Instant::now())).unwrap_or_default();
        json!({ "outcome": "remaining", "remaining_ms": super::locks::millis(left), "lost": null })
    }

    async fn close(&mut self) -> Result<(), Status> {
        let Some(session_id) = self.session.take() else { return Ok(()) };
        let request = CloseSessionRequest { session_id, reason: String::new() };
        SessionsClient::new(self.channel.clone()).close_session(request).await.map(drop)
    }
}
