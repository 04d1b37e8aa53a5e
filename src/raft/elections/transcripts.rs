//! Elections and hand-overs as transcripts: `tests/consensus/elections`.
//!
//! ```text
//! voters ID ... [learners="ID,.."]: the members of the cluster
//!
//! A leader that falls silent, as its followers see it (`silent_leader`):
//! agrees ID end=TERM.INDEX   this voter has not heard the leader for as long, and its log ends there
//! stands ID                  what that means for one of them, which knows the others' answers
//!
//! When a peer is silent (`liveness`), on a clock that the script moves:
//! pass MS                    time passes, in steps of 15 ms
//! stall MS                   this node stands still for as long
//! heard ID                   a message of a peer arrives
//! silence ID least=MS        how long it has been silent, and how long it may be
//!
//! A hand-over (`handover`):
//! successor ID [silence=MS] [lag=ENTRIES]: a voter, when it last answered, and the entries that it lacks; without `silence` it never did
//! hand_over [to=ID] [silence_max=MS]
//!
//! A slow disk of the leader (`slow_disk`):
//! samples N here=MS [ID=MS ...] [every=MS]: entries became durable here and at these peers after so long
//! disk                       the verdict
//! ```

use std::{collections::BTreeMap, time::Duration};

use goldenscript::{ArgumentConsumer, Command, Context};
use tokio::time::Instant;

use super::{
    handover::{Successor, choose},
    silent_leader::{Agreeing, TURN, turn_to_stand},
    slow_disk::{INTERVAL, Sample, Window},
};
use crate::{
    network::liveness::{PeerLiveness, STEP},
    transcripts::{Output, ids, key, number, required, run_each},
    types::{CommittedLeaderId, LogId, Membership},
};
use lockkeeper_table::MemberNode;

#[test]
fn transcripts() {
    run_each::<Stage>("elections", 8);
}

struct Stage {
    membership: Membership,
    agreeing: Agreeing,
    liveness: PeerLiveness,
    now: Instant,
    successors: Vec<Successor>,
    window: Window,
}

impl Default for Stage {
    fn default() -> Self {
        let now = Instant::now();
        let liveness = PeerLiveness::default();
        // The time before the first step does not count.
        liveness.step(now);
        Self {
            membership: Membership::default(),
            agreeing: Agreeing::new(),
            liveness,
            now,
            successors: Vec::new(),
            window: Window::default(),
        }
    }
}

impl goldenscript::Runner for Stage {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Output {
        let mut arguments = command.consume_args();
        let output = self.decide(&command.name, &mut arguments)?;
        arguments.reject_next()?;
        Ok(if output.is_empty() { output } else { output + "\n" })
    }
}

impl Stage {
    fn decide(&mut self, name: &str, arguments: &mut ArgumentConsumer<'_>) -> Output {
        match name {
            "voters" => self.begin(arguments)?,
            "agrees" => {
                let voter = number(arguments, "voter")?;
                let end = arguments.take_key("end").map(log_id).transpose()?;
                self.agreeing.insert(voter, end);
            }
            "pass" => {
                let ms = number(arguments, "time")?;
                self.pass(Duration::from_millis(ms));
            }
            "stall" => {
                self.now += Duration::from_millis(number(arguments, "time")?);
                self.liveness.step(self.now);
            }
            "heard" => self.liveness.called(number(arguments, "peer")?, None),
            "successor" => {
                let node = number(arguments, "voter")?;
                let silence = key(arguments, "silence")?.map(Duration::from_millis);
                let lag = key(arguments, "lag")?.unwrap_or_default();
                self.successors.push(Successor { node, silence, lag });
            }
            "samples" => self.sample(arguments)?,
            "stands" => return Ok(self.stands(number(arguments, "voter")?)),
            "silence" => return self.silence(arguments),
            "hand_over" => return self.hand_over(arguments),
            "disk" => return Ok(self.disk()),
            other => return Err(format!("no such command: {other}").into()),
        }
        Ok(String::new())
    }

    fn begin(&mut self, arguments: &mut ArgumentConsumer<'_>) -> Output<()> {
        let mut voters = std::collections::BTreeSet::new();
        while let Some(id) = arguments.next_pos() {
            voters.insert(id.parse()?);
        }
        let learners = ids(arguments, "learners")?;
        let nodes: BTreeMap<u64, MemberNode> =
            voters.iter().chain(&learners).map(|id| (*id, MemberNode::default())).collect();
        self.membership = Membership::new(vec![voters], nodes)?;
        Ok(())
    }

    fn stands(&self, own: u64) -> String {
        match turn_to_stand(own, &self.membership, &self.agreeing) {
            Some(0) => format!("node {own} stands for election at once"),
            Some(turn) => format!(
                "node {own} stands for election after {} ms, unless one before it is elected",
                (TURN * turn).as_millis()
            ),
            None => format!("node {own} does not stand"),
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + STEP).min(end);
            self.liveness.step(self.now);
        }
    }

    fn silence(&self, arguments: &mut ArgumentConsumer<'_>) -> Output {
        let peer = number(arguments, "peer")?;
        let least = Duration::from_millis(required(arguments, "least")?);
        let silence = self.liveness.counted_silence(peer);
        let tolerated = self.liveness.tolerated(peer, least);
        let verdict = if silence >= tolerated { "it is silent" } else { "that is not long" };
        Ok(format!("{} ms of {} ms: {verdict}", silence.as_millis(), tolerated.as_millis()))
    }

    fn hand_over(&self, arguments: &mut ArgumentConsumer<'_>) -> Output {
        let to = key(arguments, "to")?;
        let silence_max = Duration::from_millis(key(arguments, "silence_max")?.unwrap_or(300));
        Ok(match choose(self.successors.clone(), to, silence_max) {
            Ok(node) => format!("node {node} gets the leadership"),
            Err(error) => format!("refused: {error}"),
        })
    }

    fn sample(&mut self, arguments: &mut ArgumentConsumer<'_>) -> Output<()> {
        let count = number(arguments, "number of samples")?;
        let here = Duration::from_millis(required(arguments, "here")?);
        let every = key(arguments, "every")?.map_or(INTERVAL, Duration::from_millis);
        let mut peers = BTreeMap::new();
        while let Some((peer, ms)) = arguments.next_key() {
            peers.insert(peer.parse()?, Duration::from_millis(ms.parse()?));
        }

        for _ in 0..count {
            self.now += every;
            self.window.note(Sample { at: self.now, here, peers: peers.clone() });
        }
        Ok(())
    }

    fn disk(&self) -> String {
        let Some(verdict) = self.window.verdict() else { return "no hand-over".to_owned() };
        let successors =
            verdict.successors.iter().map(|(there, node)| format!("node {node} ({} ms)", there.as_millis()));
        let successors: Vec<String> = successors.collect();
        format!("{} ms here: hand over to {}", verdict.here.as_millis(), successors.join(", then "))
    }
}

/// The end of a log, written as `TERM.INDEX`.
fn log_id(text: &str) -> Output<LogId> {
    let (term, index) = text.split_once('.').ok_or("write the end of a log as TERM.INDEX")?;
    Ok(LogId { leader_id: CommittedLeaderId::new(term.parse()?), index: index.parse()? })
}
