//! Random operations, multis and watches by several sessions, at a cluster and at ZooKeeper 3.8: both must give the same answers and the
//! same events, in the same order.
//!
//! One step is one request of one session; then each session sends `sync`, which brings it every event of the step. Compared are the
//! answer, the events before it and after it at the session that asked, and the events of the other sessions.
//!
//! Zxids differ, so each is replaced by the number of the step that made it; ids of sessions by their place. What else may differ, each
//! with its reason:
//!
//! * times: only that there are some, and that a node was not modified before it was created;
//! * the order of children, and of a connection's identities: neither promises one;
//! * which of the errors a path has that cannot be one: ZooKeeper refuses it to creates alone, and knows no node there otherwise;
//! * watches of several kinds at one path of one connection: in ZooKeeper 3.8 the later one replaces the earlier one, in 3.9 both stay. So
//!   one session has the persistent ones, of one kind at each path, and the others have those that fire once;
//! * the order of events when a session is closed: ZooKeeper deletes a session's nodes in the order of a hash table;
//! * the order of the events of a multi: ZooKeeper tells them in the order of its operations, we in that of the keys.
//!
//! Each path is once in a list of `setWatches`, as in clients, whose watches are maps by path: ZooKeeper tells a missed change as often as
//! its path is listed, we tell it once.
//!
//! Not asked for: whether there is a watch (checkWatches), since ZooKeeper 3.8 now and then finds one that was never set; reads of an empty
//! path, which ZooKeeper takes for the root; and the removal of one half of a recursive watch.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{
    connection::{JuteConnection, JuteEvent, JuteSession},
    jute::{JuteAcl, JuteAnswer, JuteRequest, JuteStat, op},
    oracle::Oracle,
};

/// Steps of a walk.
const STEPS: &str = "LOCKKEEPER_ZOOKEEPER_STEPS";
const STEPS_DEFAULT: usize = 2_000;
const SEED: &str = "LOCKKEEPER_ZOOKEEPER_SEED";
/// What both grant.
const TIMEOUT_MS: i32 = 40_000;
const SESSIONS: usize = 3;
const BASE: &str = "/walk";
const PATHS: [&str; 9] = ["", "/a", "/a/x", "/a/y", "/a/x/z", "/b", "/b/x", "/c", "/guarded/n"];
/// Paths that are always there, and such that cannot be.
const STRANGE_PATHS: [&str; 6] = ["/", "walk", "/walk/", "/walk//a", "/walk/./a", "/walk/a\0"];
/// The session that has persistent watches, and no others.
const PERSISTENT: usize = 2;
const IDENTITIES: [&str; 2] = ["ann:secret", "bob:hidden"];
/// Paths of sequential nodes that a walk goes on with.
const KNOWN_MAX: usize = 6;

/// A step, with steps instead of zxids.
#[derive(Clone, Debug)]
enum WalkStep {
    Call(usize, JuteRequest),
    /// A session that loses its connection, and comes back after others have worked: it sends which watches it had, and the newest zxid
    /// that it saw.
    Return(usize, Vec<(usize, JuteRequest)>, Vec<Vec<String>>),
    /// A session that is closed; another one takes its place.
    Close(usize),
}

impl WalkStep {
    /// Whether its events may come in another order.
    fn has_no_order(&self) -> bool {
        matches!(self, Self::Close(_) | Self::Call(_, JuteRequest::Multi(_)))
    }
}

/// One of the two.
struct WalkSide {
    addresses: Vec<String>,
    sessions: Vec<JuteConnection>,
    /// All ids of sessions, in the order in which they were opened.
    ids: Vec<i64>,
    /// After each step, the newest zxid that was seen.
    zxids: Vec<i64>,
    /// How often a session came back.
    returns: usize,
}

impl WalkSide {
    async fn connect(addresses: Vec<String>) -> Self {
        let mut side = Self { addresses, sessions: Vec::new(), ids: Vec::new(), zxids: Vec::new(), returns: 0 };
        for place in 0..SESSIONS {
            let session = side.open(place).await;
            side.sessions.push(session);
        }
        side
    }

    async fn open(&mut self, place: usize) -> JuteConnection {
        let session = JuteConnection::open(&self.addresses[place % self.addresses.len()], TIMEOUT_MS).await;
        assert_eq!(session.session.timeout_ms, TIMEOUT_MS, "it is granted");
        self.ids.push(session.session.id);
        session
    }

    /// Does a step. What came, as text that is comparable with that of the other side.
    async fn run(&mut self, step: &WalkStep) -> String {
        let mut shown = match step {
            WalkStep::Call(session, request) => self.call(*session, request).await,
            WalkStep::Return(session, meanwhile, lists) => self.come_back(*session, meanwhile, lists).await,
            WalkStep::Close(place) => {
                let closed = self.sessions[*place].ask(&JuteRequest::Close).await;
                let last = self.sessions[*place].receive().await;
                let session = self.open(*place).await;
                let mut before = std::mem::replace(&mut self.sessions[*place], session);
                let mut events = before.take_events();
                events.sort();
                format!("closed {closed:?}, then {last:?}, events {events:?}")
            }
        };

        for session in &mut self.sessions {
            let synced = session.ask(&JuteRequest::Sync { path: BASE.to_owned() }).await;
            assert!(synced.is_ok(), "{synced:?}");
        }
        let newest = self.sessions.iter().map(|session| session.session.seen).max();
        self.zxids.push(newest.expect("there are sessions"));
        for (place, session) in self.sessions.iter_mut().enumerate() {
            let mut events = session.take_events();
            if step.has_no_order() {
                events.sort();
            }
            if !events.is_empty() {
                shown += &format!("\n  events of {place}: {}", show_events(&events));
            }
        }
        shown
    }

    async fn call(&mut self, session: usize, request: &JuteRequest) -> String {
        let answer = self.sessions[session].ask(request).await;
        let mut events = self.sessions[session].take_events();
        if let JuteRequest::Multi(_) = request {
            events.sort();
        }
        let before = if events.is_empty() { String::new() } else { format!("events {} ", show_events(&events)) };
        match answer {
            Ok(answer) => format!("{before}{}", self.show(&answer)),
            Err(error) => format!("{before}error {error}"),
        }
    }

    async fn come_back(&mut self, place: usize, meanwhile: &[(usize, JuteRequest)], lists: &[Vec<String>]) -> String {
        let session: JuteSession = self.sessions[place].session.clone();
        self.returns += 1;
        // The old connection is open until the new one has taken the session: a server must not wait for it.
        let mut shown = String::new();
        for (other, request) in meanwhile {
            shown += &format!("{}; ", self.call(*other, request).await);
        }
        let address = &self.addresses[(place + self.returns) % self.addresses.len()];
        let back = JuteConnection::connect(address, &session).await.expect("it listens").expect("the session lives");
        assert_eq!(back.session.id, session.id, "the same session");
        self.sessions[place] = back;
        let request = JuteRequest::SetWatches { since: session.seen, lists: lists.to_vec() };
        shown + "watches " + &self.call(place, &request).await
    }

    fn show(&self, answer: &JuteAnswer) -> String {
        let sorted = |names: &[String]| {
            let mut names = names.to_vec();
            names.sort();
            format!("{names:?}")
        };
        match answer {
            JuteAnswer::Stat(stat) => self.show_stat(stat),
            JuteAnswer::PathStat(path, stat) => format!("{path} {}", self.show_stat(stat)),
            JuteAnswer::Data(data, stat) => format!("{data:?} {}", self.show_stat(stat)),
            JuteAnswer::Names(names) => sorted(names),
            JuteAnswer::NamesStat(names, stat) => format!("{} {}", sorted(names), self.show_stat(stat)),
            JuteAnswer::Acl(acl, stat) => format!("{acl:?} {}", self.show_stat(stat)),
            JuteAnswer::Parts(parts) => {
                let show_part = |part: &Result<(i32, JuteAnswer), i32>| match part {
                    Ok((op, answer)) => format!("{op}: {}", self.show(answer)),
                    Err(error) => format!("error {error}"),
                };
                format!("{:?}", parts.iter().map(show_part).collect::<Vec<_>>())
            }
            JuteAnswer::Identities(identities) => {
                let mut identities = identities.clone();
                identities.sort();
                format!("{identities:?}")
            }
            JuteAnswer::Nothing | JuteAnswer::Path(_) | JuteAnswer::Number(_) => format!("{answer:?}"),
        }
    }

    /// Steps are numbered from 1; a zxid of the step that runs has the next number.
    fn show_stat(&self, stat: &JuteStat) -> String {
        let step = |zxid: i64| if zxid == 0 { 0 } else { self.zxids.partition_point(|seen| *seen < zxid) + 1 };
        let owner = match stat.owner {
            0 => "nobody".to_owned(),
            id => format!("session {:?}", self.ids.iter().position(|known| *known == id)),
        };
        let has_times = stat.created_ms > 0 && stat.modified_ms >= stat.created_ms;
        format!(
            "created {} modified {} children {} ({} {} {}) of {owner}, {} bytes, {} children, times {has_times}",
            step(stat.created_at),
            step(stat.modified_at),
            step(stat.children_at),
            stat.version,
            stat.children_version,
            stat.acl_version,
            stat.data_length,
            stat.children
        )
    }
}

fn show_events(events: &[JuteEvent]) -> String {
    let shown: Vec<String> = events.iter().map(|event| format!("{} {}", event.kind, event.path)).collect();
    format!("{shown:?}")
}

/// What is asked for next.
struct Walk {
    random: StdRng,
    /// Sequential nodes that were made.
    known: Vec<String>,
}

impl Walk {
    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    fn path(&mut self) -> String {
        if self.chance(40) {
            return STRANGE_PATHS[self.random.random_range(0..STRANGE_PATHS.len())].to_owned();
        }
        self.good_path()
    }

    fn good_path(&mut self) -> String {
        if !self.known.is_empty() && self.chance(5) {
            return self.known[self.random.random_range(0..self.known.len())].clone();
        }
        format!("{BASE}{}", PATHS[self.random.random_range(0..PATHS.len())])
    }

    /// Mostly any, now and then one that a node may have.
    fn version(&mut self) -> i32 {
        if self.chance(2) { -1 } else { self.random.random_range(0..4) }
    }

    fn data(&mut self) -> Option<Vec<u8>> {
        (!self.chance(10)).then(|| vec![b'd'; self.random.random_range(0..20)])
    }

    /// Mostly open. What is closed is below one node alone, so that a walk does not end before locked doors.
    fn acl(&mut self, path: &str) -> Vec<JuteAcl> {
        if self.chance(60) {
            return match self.random.random_range(0..4) {
                0 => Vec::new(),
                1 => vec![JuteAcl::new(31, "nobody", "knows")],
                2 => vec![JuteAcl::new(31, "digest", "without-a-colon")],
                _ => vec![JuteAcl::new(31, "world", "someone")],
            };
        }
        if !path.contains("/guarded/") {
            return JuteAcl::open();
        }
        let mut acl = match self.random.random_range(0..4) {
            0 => vec![JuteAcl::new(self.random.random_range(0..32), "world", "anyone")],
            1 => vec![JuteAcl::new(31, "auth", "")],
            2 => vec![JuteAcl::new(30, "ip", "127.0.0.1")],
            _ => return JuteAcl::open(),
        };
        if self.chance(2) {
            acl.insert(0, JuteAcl::new(1, "world", "anyone"));
        }
        acl
    }

    fn create(&mut self) -> JuteRequest {
        let mut path = self.path();
        let flags = if self.chance(3) { self.random.random_range(0..4) } else { self.random.random_range(0..2) };
        if flags >= 2 && path.starts_with(BASE) && !path.ends_with('/') {
            path += if self.chance(4) { "/" } else { "/s-" };
        }
        let (data, acl) = (self.data(), self.acl(&path));
        match self.random.random_range(0..8) {
            7 if flags < 2 => JuteRequest::Create { op: op::CREATE_CONTAINER, path, data, acl, flags: 4, ttl_ms: 0 },
            0..5 => JuteRequest::Create { op: op::CREATE, path, data, acl, flags, ttl_ms: 0 },
            _ => JuteRequest::Create { op: op::CREATE_2, path, data, acl, flags, ttl_ms: 0 },
        }
    }

    fn write(&mut self) -> JuteRequest {
        match self.random.random_range(0..10) {
            0..5 => self.create(),
            5..8 => JuteRequest::Delete { path: self.path(), version: self.version() },
            _ => JuteRequest::SetData { path: self.path(), data: self.data(), version: self.version() },
        }
    }

    fn part(&mut self) -> JuteRequest {
        if self.chance(5) {
            return JuteRequest::Check { path: self.path(), version: self.version() };
        }
        self.write()
    }

    /// Several places of one queue at once, and a node beside them.
    fn places(&mut self) -> JuteRequest {
        let queue = self.good_path();
        let places = self.random.random_range(2..4);
        let place = |_| JuteRequest::create(&format!("{queue}/s-"), b"", 3);
        let mut parts: Vec<_> = (0..places).map(place).collect();
        if self.chance(3) {
            parts.insert(self.random.random_range(0..=places), self.part());
        }
        JuteRequest::Multi(parts)
    }

    fn read(&mut self, session: usize) -> JuteRequest {
        let path = self.path();
        let watch = session != PERSISTENT && self.chance(2);
        match self.random.random_range(0..5) {
            0 => JuteRequest::Exists { path, watch },
            1 | 2 => JuteRequest::GetData { path, watch },
            3 => JuteRequest::GetChildren { path, watch },
            _ => JuteRequest::GetChildren2 { path, watch },
        }
    }

    fn rare(&mut self, session: usize) -> JuteRequest {
        let path = self.good_path();
        match self.random.random_range(0..10) {
            0 | 1 if session == PERSISTENT => JuteRequest::AddWatch { mode: persistent_mode(&path), path },
            0 | 1 => JuteRequest::Sync { path },
            2 if session == PERSISTENT => JuteRequest::RemoveWatches { path, kind: 3 },
            2 => JuteRequest::RemoveWatches { path, kind: self.random.random_range(1..4) },
            3 => JuteRequest::GetAcl { path: BASE.to_owned() },
            4 => JuteRequest::GetAcl { path },
            5 => {
                let acl = self.acl(&path);
                JuteRequest::SetAcl { path, acl, version: self.version() }
            }
            6 => JuteRequest::GetAllChildrenNumber { path },
            7 => JuteRequest::GetEphemerals { prefix: BASE.to_owned() },
            8 => JuteRequest::WhoAmI,
            _ => {
                let credentials = IDENTITIES[self.random.random_range(0..IDENTITIES.len())].into();
                JuteRequest::Auth { scheme: "digest".to_owned(), credentials }
            }
        }
    }

    fn request(&mut self, session: usize) -> JuteRequest {
        match self.random.random_range(0..20) {
            0..8 => self.write(),
            8..15 => self.read(session),
            15 => self.places(),
            16 => {
                let parts = self.random.random_range(0..6);
                JuteRequest::Multi((0..parts).map(|_| self.part()).collect())
            }
            17 => {
                let parts = self.random.random_range(0..4);
                JuteRequest::MultiRead((0..parts).map(|_| readable_in_multi(self.read(PERSISTENT))).collect())
            }
            _ => self.rare(session),
        }
    }

    /// Some paths, each of them once.
    fn paths(&mut self) -> Vec<String> {
        let count = self.random.random_range(0..4);
        let places = (0..count).map(|_| self.random.random_range(0..PATHS.len()));
        let mut seen = BTreeSet::new();
        places.filter(|place| seen.insert(*place)).map(|place| format!("{BASE}{}", PATHS[place])).collect()
    }

    fn step(&mut self) -> WalkStep {
        let session = self.random.random_range(0..SESSIONS);
        match self.random.random_range(0..60) {
            0 => WalkStep::Close(session),
            1 | 2 => {
                let others = self.random.random_range(0..4);
                let others = (0..others).map(|_| {
                    let other = (session + self.random.random_range(1..SESSIONS)) % SESSIONS;
                    (other, self.write())
                });
                let others = others.collect();
                let mut lists = vec![Vec::new(); 5];
                if session == PERSISTENT {
                    for path in self.paths() {
                        lists[3 + persistent_mode(&path) as usize].push(path);
                    }
                } else {
                    lists.truncate(3);
                    lists.fill_with(|| self.paths());
                }
                WalkStep::Return(session, others, lists)
            }
            _ => WalkStep::Call(session, self.request(session)),
        }
    }

    /// Goes on with sequential nodes that were made.
    fn learn(&mut self, step: &WalkStep, shown: &str) {
        let WalkStep::Call(_, JuteRequest::Create { flags: 2 | 3, .. }) = step else { return };
        let Some(start) = shown.find(BASE).filter(|_| !shown.contains("error")) else { return };
        let path = shown[start..].split(['"', ' ']).next().expect("a part");
        if self.known.len() == KNOWN_MAX {
            self.known.remove(0);
        }
        self.known.push(path.to_owned());
    }
}

/// A read as a `multiRead` can have it: of data or children, without a watch.
fn readable_in_multi(mut request: JuteRequest) -> JuteRequest {
    if let JuteRequest::Exists { path, .. } | JuteRequest::GetChildren2 { path, .. } = request {
        return JuteRequest::GetChildren { path, watch: false };
    }
    if let JuteRequest::GetChildren { watch, .. } | JuteRequest::GetData { watch, .. } = &mut request {
        *watch = false;
    }
    request
}

/// 0 persistent, 1 recursive: always the same one at a path.
fn persistent_mode(path: &str) -> i32 {
    (path.len() % 2) as i32
}

/// What was shown, with one error for a path that cannot be one.
fn without_reason(step: &WalkStep, shown: String) -> String {
    let step = format!("{step:?}");
    let is_bad = ["\"walk", "/walk/\"", "//", "/./", "\\0"].iter().any(|part| step.contains(part));
    if is_bad { shown.replace("error -8", "error -101").replace("error -114", "error -101") } else { shown }
}

/// Walks on both sides, and fails at the first difference.
async fn compare(theirs: Vec<String>, ours: Vec<String>) {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let steps = number(STEPS).unwrap_or(STEPS_DEFAULT);
    let seed = number(SEED).unwrap_or(1) as u64;
    let mut theirs = WalkSide::connect(theirs).await;
    let mut ours = WalkSide::connect(ours).await;
    let mut walk = Walk { random: StdRng::seed_from_u64(seed), known: Vec::new() };

    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for number in 0..steps {
        let step = match number {
            0 => WalkStep::Call(0, JuteRequest::create(BASE, b"", 0)),
            1 => WalkStep::Call(0, JuteRequest::create("/walk/guarded", b"", 0)),
            _ => walk.step(),
        };
        let (expected, found) = (theirs.run(&step).await, ours.run(&step).await);
        let [expected, found] = [expected, found].map(|shown| without_reason(&step, shown));
        assert!(found == expected, "seed {seed}, step {}: {step:?}\n{found}\nnot\n{expected}", number + 1);
        walk.learn(&step, &expected);

        *counts.entry("events").or_default() += expected.matches("events").count();
        *counts.entry(if expected.contains("error") { "errors" } else { "answers" }).or_default() += 1;
    }
    let sessions = ours.ids.len();
    assert!(counts.len() == 3, "seed {seed}, {sessions} sessions, {} returns: only {counts:?}", ours.returns);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a package of Debian"]
async fn two_zookeepers_differ_in_nothing_that_a_walk_compares() {
    let started = [Oracle::start().await, Oracle::start().await];
    let [Ok(one), Ok(other)] = started else {
        return crate::skipped::skipped("ZooKeeper cannot be had");
    };
    compare(vec![one.address.clone()], vec![other.address.clone()]).await;
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a package of Debian"]
async fn a_random_walk_gives_the_answers_of_zookeeper() {
    let oracle = match Oracle::start().await {
        Ok(oracle) => oracle,
        Err(problem) => return crate::skipped::skipped(format_args!("ZooKeeper cannot be had: {problem}")),
    };
    let mut cluster = super::steady_cluster().await;
    // Each session at another node, and at the next one after each return.
    compare(vec![oracle.address.clone()], cluster.zookeeper_endpoints()).await;
    cluster.stop().await;
    oracle.stop().await;
}
