//! What arrived at the nodes.

use std::{
    collections::BTreeMap,
    fmt,
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use lockkeeper_proto::v1::{self, acquire_request::Wait, release_request::Target};
use serde_json::{Value, json};
use tokio::time::Instant;

/// What a client calls. Requests on a pipeline stream count as the calls that they stand for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Method {
    Open,
    Renew,
    /// A message on a keep-alive stream.
    KeepAlive,
    /// The opening of a keep-alive stream.
    Stream,
    Close,
    Acquire,
    Release,
    Update,
    Get,
    Check,
    List,
    ForceRelease,
    Watch,
    /// The opening of a pipeline stream.
    Pipeline,
    /// The cancellation of a request on a pipeline stream.
    Cancel,
    Status,
}

const METHODS: &[(&str, Method)] = &[
    ("open", Method::Open),
    ("renew", Method::Renew),
    ("keepalive", Method::KeepAlive),
    ("stream", Method::Stream),
    ("close", Method::Close),
    ("acquire", Method::Acquire),
    ("release", Method::Release),
    ("update", Method::Update),
    ("get", Method::Get),
    ("check", Method::Check),
    ("list", Method::List),
    ("force-release", Method::ForceRelease),
    ("watch", Method::Watch),
    ("pipeline", Method::Pipeline),
    ("cancel", Method::Cancel),
    ("status", Method::Status),
];

impl FromStr for Method {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = METHODS.iter().find(|(known, _)| *known == name);
        known.map(|(_, method)| *method).ok_or_else(|| format!("there is no method {name:?}"))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = METHODS.iter().find(|(_, method)| method == self);
        f.write_str(known.map_or("?", |(name, _)| name))
    }
}

/// A call that arrived at a node, or would have arrived, if a fault had not lost it.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) method: Method,
    /// Counted from 1.
    pub(crate) node: usize,
    pub(crate) at: Instant,
    /// The stream that it came on, by a number; `None`: it was a call of its own.
    pub(crate) stream: Option<u64>,
    pub(crate) fields: BTreeMap<&'static str, String>,
    pub(crate) request: Option<v1::RequestId>,
    /// The message without its request id and its wait, to tell repetitions from other requests.
    pub(crate) content: String,
}

impl Arrival {
    pub(crate) fn new(method: Method, node: usize) -> Self {
        let (at, fields) = (Instant::now(), BTreeMap::new());
        Self { method, node, at, stream: None, fields, request: None, content: String::new() }
    }

    pub(crate) fn with(mut self, field: &'static str, value: impl ToString) -> Self {
        self.fields.insert(field, value.to_string());
        self
    }

    pub(crate) fn on(mut self, stream: u64) -> Self {
        self.stream = Some(stream);
        self
    }

    fn requested(mut self, session: &str, request: Option<&v1::RequestId>, content: String) -> Self {
        self = self.with("session", session);
        if let Some(request) = request {
            let kept: Vec<String> = request.kept.iter().map(u64::to_string).collect();
            self = self.with("id", request.id).with("lowest", request.lowest).with("kept", kept.join(","));
        }
        self.request = request.cloned();
        self.content = content;
        self
    }

    pub(crate) fn from_acquire(node: usize, request: &v1::AcquireRequest) -> Self {
        let (wait, ms) = match request.wait {
            None | Some(Wait::WaitMs(0) | Wait::WaitForever(false)) => ("no", 0),
            Some(Wait::WaitMs(ms)) => ("limited", ms),
            Some(Wait::WaitForever(true)) => ("forever", 0),
        };
        let names: Vec<&str> = request.locks.iter().map(|want| &*want.name).collect();
        let content = format!("{:?} {} {wait}", request.locks, request.lock_delay_ms);
        let arrival = Self::new(Method::Acquire, node).with("name", names.join(",")).with("wait", wait);
        arrival.with("wait_ms", ms).requested(&request.session_id, request.request.as_ref(), content)
    }

    pub(crate) fn from_release(node: usize, request: &v1::ReleaseRequest) -> Self {
        let arrival = Self::new(Method::Release, node);
        let arrival = match request.target {
            Some(Target::Token(token)) => arrival.with("target", "token").with("token", token),
            Some(Target::AcquireRequestId(id)) => arrival.with("target", "acquire").with("acquire_id", id),
            None => arrival.with("target", "none"),
        };
        arrival.requested(&request.session_id, request.request.as_ref(), format!("{:?}", request.target))
    }

    pub(crate) fn from_update(node: usize, request: &v1::UpdateRequest) -> Self {
        let content = format!("{:?}", v1::UpdateRequest { request: None, ..request.clone() });
        let arrival = Self::new(Method::Update, node).with("name", &request.name).with("token", request.token);
        let arrival = arrival.with("keep", request.keep_data);
        arrival.requested(&request.session_id, request.request.as_ref(), content)
    }

    /// For people and programs that look on.
    pub(crate) fn show(&self) -> Value {
        let mut shown = json!({ "method": self.method.to_string(), "node": self.node });
        for (field, value) in &self.fields {
            shown[*field] = json!(value);
        }
        shown
    }
}

/// All arrivals, in their order.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Vec<Arrival>>);

impl Arrivals {
    pub(crate) fn note(&self, arrival: Arrival) {
        self.all().push(arrival);
    }

    /// Those since the `mark`th.
    pub(crate) fn since(&self, mark: usize) -> Vec<Arrival> {
        self.all().iter().skip(mark).cloned().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
