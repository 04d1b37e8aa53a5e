//! Clients of one lock, whose answers are lost and whose requests come again: no two hold it at one time.
//!
//! Each client counts its lease from when it sends the request that is answered: the last time, if the request comes again, which is later
//! than most clients do. Where clients watch a version that does not change, and so cannot see this renewal, it counts from the first
//! time.

use std::time::Duration;

use proptest::{collection, prelude::*};
use tokio::{
    runtime::Builder,
    time::{Instant, advance},
};

use super::{
    Api,
    locks::{GET, uuid},
};

const LEASE: Duration = Duration::from_secs(20);
const CLIENTS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Java,
    /// Java, by updates where an item is there.
    Updates,
    Python,
    /// Python's, with data of its own in the item.
    Noted,
}

#[derive(Clone, Debug)]
enum Step {
    /// Looks, and acquires if the lock is free; where it does not become free by itself, if its version has not changed for a lease. The
    /// answer may be lost.
    Acquire {
        client: usize,
        is_lost: bool,
    },
    /// The request whose answer was lost, under the same id or another.
    Again {
        client: usize,
        has_same_id: bool,
        is_lost: bool,
    },
    Heartbeat {
        client: usize,
    },
    Release {
        client: usize,
    },
    Wait {
        ms: u64,
    },
}

#[derive(Clone, Debug, Default)]
struct Client {
    /// What it sent last.
    version: String,
    pending: Option<Pending>,
    holds_until: Option<Instant>,
    /// The version that it saw last, and since when.
    seen: Option<(String, Instant)>,
}

/// A request whose answer was lost.
#[derive(Clone, Debug)]
struct Pending {
    operation: &'static str,
    body: String,
    sent: Instant,
}

struct Run {
    api: Api,
    shape: Shape,
    clients: Vec<Client>,
    numbers: u64,
}

impl Run {
    async fn new(shape: Shape) -> Self {
        let api = Api::with_tables(&[("locks", &["key"])]).await;
        Self { api, shape, clients: vec![Client::default(); CLIENTS], numbers: 0 }
    }

    fn is_java(&self) -> bool {
        matches!(self.shape, Shape::Java | Shape::Updates)
    }

    fn names(&self) -> [&'static str; 3] {
        if self.is_java() {
            ["ownerName", "recordVersionNumber", "leaseDuration"]
        } else {
            ["owner_name", "record_version_number", "lease_duration"]
        }
    }

    fn next_version(&mut self) -> String {
        self.numbers += 1;
        uuid(&self.numbers.to_string())
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Wait { ms } => advance(Duration::from_millis(*ms)).await,
            Step::Acquire { client, is_lost } => self.acquire(*client, *is_lost).await,
            Step::Again { client, has_same_id, is_lost } => {
                if let Some(pending) = self.clients[*client].pending.clone() {
                    self.numbers += 1;
                    let id =
                        if *has_same_id { self.clients[*client].version.clone() } else { self.numbers.to_string() };
                    self.send(*client, pending, &id, *is_lost).await;
                }
            }
            Step::Heartbeat { client } => self.heartbeat(*client).await,
            Step::Release { client } => self.release(*client).await,
        }
    }

    /// Sends an acquisition, and hears the answer unless it is lost.
    async fn send(&mut self, client: usize, request: Pending, id: &str, is_lost: bool) {
        let answer = self.api.call_again(request.operation, Some(id), &request.body).await;
        let from = if self.shape == Shape::Noted { request.sent } else { Instant::now() };
        let client = &mut self.clients[client];
        client.pending = is_lost.then_some(request);
        if !is_lost && answer.is_ok() {
            client.holds_until = Some(from + LEASE);
        }
    }

    async fn acquire(&mut self, client: usize, is_lost: bool) {
        if self.holds(client) {
            return;
        }
        let [_, version_name, _] = self.names();
        let item = self.api.ok("GetItem", GET).await["Item"].clone();
        let seen = item[version_name]["S"].as_str().map(str::to_owned);
        let known = self.clients[client].seen.clone();
        self.clients[client].seen = match (&seen, known) {
            (Some(version), Some((known, since))) if *version == known => Some((known, since)),
            (Some(version), _) => Some((version.clone(), Instant::now())),
            (None, _) => None,
        };
        let is_old = self.clients[client].seen.as_ref().is_some_and(|(_, since)| since.elapsed() >= LEASE);
        let is_dead = is_old && self.shape == Shape::Noted;
        let condition = match &seen {
            None => "attribute_not_exists(#v)".to_owned(),
            Some(_) if item.get("isReleased").is_some() => "isReleased = :released".to_owned(),
            Some(_) if is_dead => "#v = :seen".to_owned(),
            Some(_) => return,
        };
        let version = self.next_version();
        self.clients[client].version.clone_from(&version);
        let (operation, body) = self.acquisition(client, &version, &condition, seen.as_deref());
        self.send(client, Pending { operation, body, sent: Instant::now() }, &version, is_lost).await;
    }

    fn acquisition(&self, client: usize, version: &str, condition: &str, seen: Option<&str>) -> (&'static str, String) {
        let [owner_name, version_name, length_name] = self.names();
        let length = if self.is_java() { r#"{"S":"20000"}"# } else { r#"{"N":"20"}"# };
        let more = match self.shape {
            Shape::Java | Shape::Updates => "",
            Shape::Python => r#","expiry_time":{"N":"1735693200"}"#,
            Shape::Noted => r#","expiry_time":{"N":"1735693200"},"note":{"S":"x"}"#,
        };
        let mut values = Vec::new();
        if condition.contains(":released") {
            values.push(r#"":released":{"S":"1"}"#.to_owned());
        } else if condition.contains(":seen") {
            values.push(format!(r#"":seen":{{"S":"{}"}}"#, seen.unwrap_or_default()));
        }
        let owner = format!(r#"{{"S":"client-{client}"}}"#);
        let version = format!(r#"{{"S":"{version}"}}"#);
        let is_update = self.shape == Shape::Updates && seen.is_some();
        let (operation, change) = if is_update {
            values.extend([format!(r#"":o":{owner}"#), format!(r#"":new":{version}"#), format!(r#"":l":{length}"#)]);
            let update = format!("SET {owner_name} = :o, #v = :new, {length_name} = :l REMOVE isReleased");
            ("UpdateItem", format!(r#""Key":{{"key":{{"S":"jobs"}}}},"UpdateExpression":"{update}""#))
        } else {
            let item = format!(
                r#"{{"key":{{"S":"jobs"}},"{owner_name}":{owner},"{version_name}":{version},"{length_name}":{length}{more}}}"#
            );
            ("PutItem", format!(r#""Item":{item}"#))
        };
        let values = match values.join(",") {
            none if none.is_empty() => none,
            some => format!(r#","ExpressionAttributeValues":{{{some}}}"#),
        };
        let names = if condition.contains("#v") || is_update {
            format!(r##","ExpressionAttributeNames":{{"#v":"{version_name}"}}"##)
        } else {
            String::new()
        };
        (operation, format!(r#"{{"TableName":"locks",{change},"ConditionExpression":"{condition}"{names}{values}}}"#))
    }

    fn holds(&self, client: usize) -> bool {
        self.clients[client].holds_until.is_some_and(|until| until > Instant::now())
    }

    async fn heartbeat(&mut self, client: usize) {
        if !self.holds(client) {
            return;
        }
        let [_, version_name, _] = self.names();
        let version = self.next_version();
        let body = format!(
            r##"{{"TableName":"locks","Key":{{"key":{{"S":"jobs"}}}},"UpdateExpression":"SET #v = :new","ConditionExpression":"#v = :old",
            "ExpressionAttributeNames":{{"#v":"{version_name}"}},"ExpressionAttributeValues":{{":new":{{"S":"{version}"}},
            ":old":{{"S":"{}"}}}}}}"##,
            self.clients[client].version
        );
        let renewed = self.api.call_again("UpdateItem", Some(&version), &body).await.is_ok();
        self.clients[client].version = version;
        self.clients[client].holds_until = renewed.then(|| Instant::now() + LEASE);
    }

    async fn release(&mut self, client: usize) {
        if !self.holds(client) {
            return;
        }
        let [_, version_name, _] = self.names();
        let version = &self.clients[client].version;
        let body = format!(
            r##"{{"TableName":"locks","Key":{{"key":{{"S":"jobs"}}}},"ConditionExpression":"#v = :old",
            "ExpressionAttributeNames":{{"#v":"{version_name}"}},"ExpressionAttributeValues":{{":old":{{"S":"{version}"}}}}}}"##
        );
        // Its right ended with its lease at the latest, whatever the answer is.
        _ = self.api.call("DeleteItem", &body).await;
        self.clients[client].holds_until = None;
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    prop_oneof![
        4 => (client.clone(), any::<bool>()).prop_map(|(client, is_lost)| Step::Acquire { client, is_lost }),
        3 => (client.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(client, has_same_id, is_lost)| Step::Again { client, has_same_id, is_lost }),
        2 => client.clone().prop_map(|client| Step::Heartbeat { client }),
        1 => client.prop_map(|client| Step::Release { client }),
        4 => prop_oneof![Just(20_000), 0..25_000_u64].prop_map(|ms| Step::Wait { ms }),
    ]
}

proptest! {
    #[test]
    fn no_two_clients_hold_the_lock(
        shape in prop_oneof![Just(Shape::Java), Just(Shape::Updates), Just(Shape::Python), Just(Shape::Noted)],
        steps in collection::vec(any_step(), 1..40),
    ) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let mut run = Run::new(shape).await;
            for (number, step) in steps.iter().enumerate() {
                run.step(step).await;
                let holders: Vec<_> = (0..CLIENTS).filter(|client| run.holds(*client)).collect();
                prop_assert!(holders.len() <= 1, "{holders:?} after step {number} of {steps:?}");
            }
            Ok(())
        })?;
    }
}
