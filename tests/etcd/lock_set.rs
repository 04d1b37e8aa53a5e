//! The lock-set test, as in Jepsen's tests of etcd: additions to a set under a lock, by holders of which one pauses for longer than its
//! lease.
//!
//! A lock alone cannot help such a holder's successor: the late write overwrites the one before it, and the checker finds that no order
//! explains what was read. A resource that checks create revisions, as fencing tokens, refuses the late write. Both sets are in one run,
//! under the same faults.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use lockkeeper::{
    chaos::{
        checker::{Property, Verdict, check},
        history::{Event, Function, What},
    },
    fence::{Fence, Hold, Memory},
    machine::Token,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

use crate::{turns, unmodified::judged};

/// For how long faults are injected, and which ones.
const DURATION: &str = "LOCKKEEPER_ETCD_CHAOS";
const FAULTS: &str = "LOCKKEEPER_ETCD_FAULTS";
const FENCED: &str = "fenced-set";
const UNFENCED: &str = "unfenced-set";

/// A set: what was written last, and all that ever was in it.
#[derive(Default)]
struct Set {
    elements: BTreeSet<u64>,
    last: Option<u64>,
    ever: BTreeSet<u64>,
}

/// A read of a set, or with elements a write of all of it. Without a token it is only looked at, by one who holds nothing.
#[derive(Deserialize)]
struct Ask {
    set: u64,
    token: Option<u64>,
    elements: Option<Vec<u64>>,
}

/// Sets that know nothing of locks. With a fence they refuse tokens lower than one that they have seen.
struct Resource {
    fence: Option<Fence<Memory>>,
    sets: Mutex<BTreeMap<u64, Set>>,
    writes: AtomicU64,
}

impl Resource {
    /// Serves a resource: where, and until when.
    async fn serve(fence: Option<Fence<Memory>>) -> (Arc<Self>, String, AbortHandle) {
        let resource = Arc::new(Self { fence, sets: Mutex::default(), writes: AtomicU64::new(0) });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let serving = Arc::clone(&resource);
        let accepting = tokio::spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let resource = Arc::clone(&serving);
                clients.spawn(async move { resource.answer(stream).await });
            }
        });
        (resource, address, accepting.abort_handle())
    }

    async fn answer(&self, mut stream: TcpStream) {
        let (from, mut to) = stream.split();
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let ask: Ask = serde_json::from_str(&line).expect("a request of ours");
            let mut answer = self.pass(ask).await.to_string();
            answer.push('\n');
            if to.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// The read passes the fence as the write does: otherwise an older holder could still write between the two.
    async fn pass(&self, ask: Ask) -> Value {
        match (&self.fence, ask.token) {
            (Some(fence), Some(token)) => {
                let done = fence.run("set", Token(token), Hold::Exclusive, async || self.act(&ask)).await;
                done.unwrap_or_else(|refused| json!({ "refused": refused.to_string() }))
            }
            _ => self.act(&ask),
        }
    }

    fn act(&self, ask: &Ask) -> Value {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let set = sets.entry(ask.set).or_default();
        if let Some(elements) = &ask.elements {
            set.elements = elements.iter().copied().collect();
            set.ever.extend(&set.elements);
            set.last = elements.last().copied();
            return json!({ "seq": self.writes.fetch_add(1, Ordering::Relaxed) });
        }
        json!({ "elements": set.elements, "last": set.last })
    }

    /// How many elements were added, and how many of them are gone.
    fn added_and_lost(&self) -> (usize, usize) {
        let sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |of: fn(&Set) -> usize| sets.values().map(of).sum();
        (count(|set| set.ever.len()), count(|set| set.ever.difference(&set.elements).count()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: minutes of pauses"]
async fn a_pause_loses_additions_unless_the_resource_checks_create_revisions() {
    let _turn = turns::whole_machine().await;
    let of = |name, usual: &str| env::var(name).unwrap_or_else(|_| usual.to_owned());
    let duration = of(DURATION, "8s");
    let faults = of(FAULTS, "kill-leader,pause-leader,partition-leader");
    let fence = Fence::open(Memory).expect("in memory");
    let (fenced, fenced_at, one) = Resource::serve(Some(fence)).await;
    let (unfenced, unfenced_at, two) = Resource::serve(None).await;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd/clients/lock_set.py");
    // The standard library alone.
    let programs = [(FENCED, fenced_at), (UNFENCED, unfenced_at)]
        .map(|(name, address)| format!("exec python3 '{}' {name} {address}", program.display()));
    let (history, text) = judged::history(&duration, &faults, &programs).await;
    one.abort();
    two.abort();
    assert!(!text.contains("TROUBLE"), "{text}");

    let (added, lost) = unfenced.added_and_lost();
    let (added_fenced, lost_fenced) = fenced.added_and_lost();
    eprintln!("without a fence {lost} of {added} additions were lost, with one {lost_fenced} of {added_fenced}");
    assert!(lost > 0 && added_fenced > 2, "the pauses have hit nothing\n{text}");
    assert_eq!(lost_fenced, 0, "{text}");

    let count = |is_one: &dyn Fn(&What) -> bool, of: &str| {
        let events = history.events.iter().map(|(_, event)| event);
        events.filter(|event: &&Event| event.process.starts_with(of) && is_one(&event.what)).count()
    };
    let is_refused = |what: &What| matches!(what, What::Fail { reason, .. } if reason == "refused_token");
    let is_written = |what: &What| matches!(what, What::Ok(answer) if answer.function() == Function::Write);
    assert!(count(&is_refused, FENCED) > 0 && count(&is_written, FENCED) > 2, "{text}");
    // Only the set without a fence is not explained.
    for finding in check(&history).expect("it is a history") {
        match (finding.property, &finding.verdict) {
            (Property::Linearizability, Verdict::Violated(violations)) => {
                let all = violations.shown.iter().all(|violation| violation.says.contains(&format!("\"{UNFENCED}/")));
                assert!(all && violations.shown.len() as u64 == violations.count, "{violations:?}");
                violations.shown.iter().for_each(|violation| eprintln!("{}", violation.says));
            }
            (Property::Linearizability, other) => panic!("the lost additions were not found: {other:?}\n{text}"),
            (_, Verdict::Violated(_)) => panic!("{finding:?}\n{text}"),
            (Property::MutualExclusion | Property::Fencing, verdict) => {
                assert_eq!(*verdict, Verdict::Holds, "{finding:?}\n{text}");
                eprintln!("{}: {:?}", finding.property, finding.evidence);
            }
            _ => {}
        }
    }
}
