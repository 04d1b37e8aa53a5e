//! `lockkeeper lock`: the command and all its descendants are dead before another session holds the lock, whichever process is killed,
//! stopped or partitioned meanwhile.
//!
//! The command is a tree of processes that try to escape (`work`); the next holder checks for survivors when it enters.

#![cfg(target_os = "linux")]

mod cut;
mod ends;
mod terminal;
mod work;

use std::{io, time::Duration};

use lockkeeper::{
    client::{Client, Guard, Session},
    local::{LocalCluster, Signal},
};
use tokio::{io::AsyncReadExt as _, time::timeout};

use self::work::{Crowd, Work, Wrapper, descendants, resume, signal, signal_if_alive};
use crate::support::{LONG, client, cluster_with, long_session, until};

/// The TTL of a lock of which the deadline is waited for. The command is killed a tenth of it before that, and has until then to end:
/// beside the other tests, a process that was killed has once got no processor for 250 ms.
const SHORT_TTL: &str = "5s";

/// Processes of a crowd: with as many, a read of a file of each takes longer than a command has to end.
const CROWD: usize = 20_000;

/// How often a keeper is stopped, each time a little later.
const TRIES: u32 = 40;

/// How much later.
const LATER: Duration = Duration::from_micros(150);

/// One node suffices here, and starts fast.
async fn one_node() -> LocalCluster {
    cluster_with(|options| options.nodes = Some(1)).await
}

/// Another session, first in the queue for the lock.
struct Next {
    client: Client,
    waiting: tokio::task::JoinHandle<Result<Guard, lockkeeper::client::Error>>,
    _session: Session,
}

impl Next {
    async fn waits(cluster: &LocalCluster) -> Self {
        let client = client(cluster);
        let session = long_session(&client).await;
        let waiting = tokio::spawn(session.acquire("seat").into_future());
        until("the next in the queue", async || {
            let lock = client.get("seat").await.ok()?.lock;
            (lock.queue_length == 1).then_some(())
        })
        .await;
        Self { client, waiting, _session: session }
    }

    async fn enters(self) -> Guard {
        timeout(LONG, self.waiting).await.expect("granted in time").expect("no panic").expect("granted")
    }

    /// Waits for the grant, and requires that all processes of the command are dead by then.
    async fn enters_alone(self, work: &Work) {
        let _held = self.enters().await;
        assert!(work.is_over(), "alive while another session holds the lock: {:?}", work.pids());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_wrapper_takes_the_command_with_it() {
    let cluster = one_node().await;
    let work = Work::stubborn();
    let mut wrapper = Wrapper::start(&cluster, "600s", &work).await;
    wrapper.signal(Signal::KILL);
    wrapper.ended().await;
    // At once: the deadline is minutes away.
    work.over().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_keeper_takes_the_command_with_it() {
    let cluster = one_node().await;
    let work = Work::stubborn();
    let mut wrapper = Wrapper::start(&cluster, "600s", &work).await;
    let next = Next::waits(&cluster).await;
    signal(wrapper.keeper(), Signal::KILL);
    next.enters_alone(&work).await;
    let (code, stderr) = wrapper.ended().await;
    assert_eq!(code, Some(137), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_dies_when_wrapper_and_keeper_are_killed_together() {
    let cluster = one_node().await;
    let work = Work::stubborn();
    let mut wrapper = Wrapper::start(&cluster, "600s", &work).await;
    let both = [wrapper.pid(), wrapper.keeper()];
    both.iter().for_each(|&pid| signal(pid, Signal::STOP));
    both.iter().for_each(|&pid| signal(pid, Signal::KILL));
    wrapper.ended().await;
    work.over().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lock_ends_the_command_at_once() {
    let cluster = one_node().await;
    let work = Work::obedient();
    let mut wrapper = Wrapper::start(&cluster, "600s", &work).await;
    let next = Next::waits(&cluster).await;
    next.client.force_release("seat", "maintenance").await.expect("an operator may");
    next.enters_alone(&work).await;
    let (code, stderr) = wrapper.ended().await;
    assert_eq!(code, Some(11), "{stderr}");
    assert!(stderr.contains("maintenance"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lock_ends_a_command_that_ignores_sigterm() {
    let cluster = one_node().await;
    let work = Work::stubborn();
    let mut wrapper = Wrapper::start(&cluster, SHORT_TTL, &work).await;
    let next = Next::waits(&cluster).await;
    next.client.force_release("seat", "maintenance").await.expect("an operator may");
    next.enters_alone(&work).await;
    assert_eq!(wrapper.ended().await.0, Some(11));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_keeper_does_not_delay_the_end_of_the_command() {
    let cluster = one_node().await;
    let work = Work::stubborn();
    let mut wrapper = Wrapper::start(&cluster, SHORT_TTL, &work).await;
    let next = Next::waits(&cluster).await;
    signal(wrapper.keeper(), Signal::STOP);
    next.client.force_release("seat", "maintenance").await.expect("an operator may");
    next.enters_alone(&work).await;
    assert_eq!(wrapper.ended().await.0, Some(11));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_wrapper_does_not_extend_the_deadline() {
    let cluster = one_node().await;
    let work = Work::stubborn();
    let mut wrapper = Wrapper::start(&cluster, SHORT_TTL, &work).await;
    let next = Next::waits(&cluster).await;
    wrapper.signal(Signal::STOP);
    next.enters_alone(&work).await;
    wrapper.signal(Signal::CONT);
    let (code, stderr) = wrapper.ended().await;
    assert_eq!(code, Some(11), "{stderr}");
}

/// Of wrapper, outer keeper and inner keeper. The third one ends the command at once: the deadline is minutes away.
#[tokio::test(flavor = "multi_thread")]
async fn two_that_are_killed_at_once_take_the_command_with_them() {
    for (first, second) in [(0, 1), (0, 2), (1, 2)] {
        // The session of a dead wrapper keeps the lock.
        let cluster = one_node().await;
        let work = Work::stubborn();
        let wrapper = Wrapper::start(&cluster, "600s", &work).await;
        let all = [wrapper.pid(), wrapper.keeper(), wrapper.inner_keeper()];
        let both = [all[first], all[second]];
        // At the same moment: none of them reacts to the end of the other.
        both.iter().for_each(|&pid| signal(pid, Signal::STOP));
        both.iter().for_each(|&pid| signal(pid, Signal::KILL));
        work.over().await;
    }
}

/// The wrapper is killed, and the outer keeper is stopped while it kills the command for that: the inner one must be there to do it.
#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_is_stopped_while_it_kills_leaves_nothing_alive() {
    let cluster = one_node().await;
    let endpoints = cluster.endpoints().join(",");
    let mut all = Vec::new();
    for number in 0..TRIES {
        let work = Work::stubborn();
        let wrapper = Wrapper::start_for(&format!("seat/{number}"), &endpoints, SHORT_TTL, &work).await;
        let keeper = wrapper.keeper();
        wrapper.signal(Signal::KILL);
        // Its work takes milliseconds: each try stops it at another moment of it, and any moment must do.
        tokio::time::sleep(LATER * number).await;
        signal_if_alive(keeper, Signal::STOP);
        all.push((work, wrapper, keeper));
    }
    for (work, _wrapper, keeper) in all {
        work.over().await;
        resume(keeper);
    }
}

/// To find the command's processes must not take longer than there is time, however many others there are.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: thousands of processes"]
async fn a_command_beside_thousands_of_processes_is_dead_in_time() {
    let cluster = one_node().await;
    let _crowd = Crowd::gather(CROWD).await;
    let work = Work::stubborn();
    let wrapper = Wrapper::start(&cluster, "2s", &work).await;
    let next = Next::waits(&cluster).await;
    wrapper.signal(Signal::STOP);
    next.enters_alone(&work).await;
    wrapper.signal(Signal::CONT);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: the third process must get a processor within a tenth of the TTL"]
async fn no_two_faults_at_once_leave_the_command_alive() {
    // Side by side, each in a cluster of its own: most of the time is a wait for the end of a TTL.
    tokio::join!(two_faults_at_once(0, 1), two_faults_at_once(0, 2), two_faults_at_once(1, 2));
}

/// Two of wrapper, outer keeper and inner keeper, each of them stopped or killed.
async fn two_faults_at_once(first: usize, second: usize) {
    let cluster = one_node().await;
    for number in 0..4 {
        let faults = [number & 1, number & 2].map(|is_killed| if is_killed > 0 { Signal::KILL } else { Signal::STOP });
        let work = Work::stubborn();
        let wrapper = Wrapper::start(&cluster, SHORT_TTL, &work).await;
        let next = Next::waits(&cluster).await;
        let all = [wrapper.pid(), wrapper.keeper(), wrapper.inner_keeper()];
        let both = [all[first], all[second]];

        // At the same moment: none of them reacts to the end of the other.
        both.iter().for_each(|&pid| signal(pid, Signal::STOP));
        both.iter().zip(faults).for_each(|(&pid, fault)| signal_if_alive(pid, fault));
        if first > 0 {
            // The wrapper goes on, and keeps the lock.
            next.client.force_release("seat", "maintenance").await.expect("an operator may");
        }
        println!("processes {first} and {second}: {faults:?}");
        next.enters_alone(&work).await;
        all.iter().for_each(|&pid| resume(pid));
    }
}

/// A write that was sent under the lock arrives after the next holder's write. No lock service can prevent that; the fencing token does.
#[tokio::test(flavor = "multi_thread")]
async fn processes_stopped_together_end_when_resumed_and_their_late_writes_are_refused() {
    let cluster = one_node().await;
    let work = Work::writing_its_token();
    let mut wrapper = Wrapper::start(&cluster, "2s", &work).await;
    let mut network = wrapper.stdout();
    let mut resource = Resource::default();
    let mut write = [0; 2];
    timeout(LONG, network.read_exact(&mut write)).await.expect("it writes").expect("it writes");
    assert!(resource.accepts(&write), "the holder may write");

    let next = Next::waits(&cluster).await;
    let all = [vec![wrapper.pid()], descendants(wrapper.pid())].concat();
    all.iter().for_each(|&pid| signal(pid, Signal::STOP));
    let next = next.enters().await;
    assert!(!work.is_over(), "a stopped process is not dead");
    assert!(resource.accepts(format!("{}\n", next.token().0).as_bytes()), "the next holder may write");
    // The first that goes on kills the others.
    all.iter().for_each(|&pid| resume(pid));

    let mut late = Vec::new();
    timeout(LONG, network.read_to_end(&mut late)).await.expect("it ends").expect("a pipe");
    assert!(work.is_over(), "the pipe is closed, and these live: {:?}", work.pids());
    let (code, stderr) = wrapper.ended().await;
    assert_eq!(code, Some(11), "{stderr}");
    assert!(!late.is_empty(), "the pipe was full when it was stopped");
    assert!(late.chunks_exact(2).all(|write| !resource.accepts(write)), "a late write was accepted");
}

/// A protected resource that refuses lower tokens. Each write is a token and a newline.
#[derive(Default)]
struct Resource {
    highest_seen: u64,
}

impl Resource {
    fn accepts(&mut self, write: &[u8]) -> bool {
        let token = str::from_utf8(write)
            .map_err(io::Error::other)
            .and_then(|token| token.trim().parse::<u64>().map_err(io::Error::other));
        let token = token.expect("a token");
        let accepted = token >= self.highest_seen;
        self.highest_seen = self.highest_seen.max(token);
        accepted
    }
}

/// A duration longer than any test.
const NEVER: Duration = Duration::from_secs(1_000);
