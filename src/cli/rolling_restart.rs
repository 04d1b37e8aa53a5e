//! `lockkeeper rolling-restart` restarts the nodes one after the other, while the cluster serves.
//!
//! Followers first, by id; the leader last, after it has handed the leadership over. Before each node the whole cluster must be healthy and
//! the leader must say that the node may be taken down; after it the node must answer as a new process, serve, and have applied all that
//! was committed when it was taken down. At the first doubt the command stops: nodes that are restarted already stay so, and a repetition
//! restarts all of them again (`--only` restarts the rest).
//!
//! Deliberately absent: how a node is restarted, and with which program. `--with` names the operator's command.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Stdio,
    time::Duration,
};

use clap::Args;
use futures::future::join_all;
use tokio::{
    process::Command,
    time::{Instant, sleep, timeout},
};

use super::{
    ClusterArguments, Exit, Failure,
    output::{deliver, print},
    show, terminal,
};
use crate::{
    client::Client,
    proto::v1::{Member, Role, StatusRequest, StatusResponse, cluster_client::ClusterClient},
};

/// Time between two looks at the nodes.
const LOOK: Duration = Duration::from_millis(200);
/// What a command for `--with` can name.
const PLACEHOLDERS: [&str; 4] = ["{host}", "{node_id}", "{client_address}", "{peer_address}"];

/// Restarts the nodes one after the other, while the cluster serves: followers first, the leader last. Stops at the first doubt.
///
/// For a new version, install it on all hosts first; the restart then upgrades the cluster. Each node is waited for until it serves and
/// has caught up. Exit code 1: it stopped; the message says at which node and why.
#[derive(Args, Debug)]
pub(super) struct RollingRestart {
    /// The command that restarts a node, run by sh: {host}, {node_id}, {client_address} and {peer_address} are replaced by those of
    /// the node. Without it you are asked to restart each node yourself
    #[arg(long, value_name = "COMMAND")]
    with: Option<String>,
    /// Restart only this node; can be repeated
    #[arg(long, value_name = "NODE_ID")]
    only: Vec<u64>,
    /// Check the cluster, and show the order and the commands; restart nothing
    #[arg(long)]
    dry_run: bool,
    /// How long a node may take to restart and to catch up, its command included
    #[arg(long, value_parser = super::arguments::duration, default_value = "5m", value_name = "TIME")]
    limit: Duration,
    /// How long to wait for each answer of a node
    #[arg(long, value_parser = super::arguments::duration, default_value = "2s", value_name = "TIME")]
    node_timeout: Duration,
    /// Also restart a node if the others are not a majority, as with one or two voters: nothing is granted until it is back
    #[arg(long)]
    allow_outage: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// The cluster at one moment.
struct RestartSurvey {
    leader: StatusResponse,
    /// Each member's answer, or why there is none.
    answers: BTreeMap<u64, Result<StatusResponse, String>>,
}

impl RollingRestart {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        if let Some(command) = &self.with {
            check_placeholders(command)?;
        } else if !terminal::is_there() && !self.dry_run {
            return Err(Failure::new(
                Exit::Usage,
                "there is no terminal to ask on: give the command that restarts a node, as in --with 'ssh {host} sudo systemctl restart \
                 lockkeeper'",
            ));
        }

        let client = self.cluster.client()?;
        let survey = self.first_survey(&client).await?;
        let order = self.order(&survey)?;
        if let Some(doubt) = survey.doubt() {
            return Err(stopped(&format!("nothing was restarted: {doubt}")));
        }

        if self.dry_run {
            return self.show_plan(&survey, &order);
        }

        let began = Instant::now();
        let mut left: BTreeSet<u64> = order.iter().copied().collect();
        while !left.is_empty() {
            let done = self.restart_one(&client, &left).await.map_err(|why| {
                let left: Vec<_> = left.iter().map(u64::to_string).collect();
                stopped(&format!("{why}; not restarted, or not back: node {}", left.join(", ")))
            })?;
            left.remove(&done);
        }

        let nodes = show::count(order.len(), "node", "nodes");
        print(&format!("done: {nodes} restarted in {:.1}s\n", began.elapsed().as_secs_f64()))?;
        Ok(Exit::Success)
    }

    /// The members to restart: the leader last.
    fn order(&self, survey: &RestartSurvey) -> Result<Vec<u64>, Failure> {
        let members: BTreeSet<u64> = survey.leader.members.iter().map(|member| member.node_id).collect();
        if let Some(unknown) = self.only.iter().find(|id| !members.contains(id)) {
            let members: Vec<_> = members.iter().map(u64::to_string).collect();
            let text = format!("--only {unknown}: there is no such member; the members are {}", members.join(", "));
            return Err(Failure::new(Exit::Usage, text));
        }
        let mut order: Vec<_> =
            members.into_iter().filter(|id| self.only.is_empty() || self.only.contains(id)).collect();
        order.sort_by_key(|id| (*id == survey.leader.node_id, *id));
        Ok(order)
    }

    fn show_plan(&self, survey: &RestartSurvey, order: &[u64]) -> Result<Exit, Failure> {
        for node_id in order {
            let member = survey.member(*node_id).ok_or_else(|| stopped("the members changed meanwhile"))?;
            let how = match &self.with {
                Some(command) => expand(command, member).map_err(|why| stopped(&why))?,
                None => "by hand".to_owned(),
            };
            let role = if *node_id == survey.leader.node_id { "leader, hands over first" } else { "follower" };
            print(&format!("node {node_id} ({}, {role}): {how}\n", show::text(&member.client_address)))?;
        }
        Ok(Exit::Success)
    }

    /// Restarts one of these nodes, the leader only if it is the last one, and waits until it is back. Returns its id.
    async fn restart_one(&self, client: &Client, left: &BTreeSet<u64>) -> Result<u64, String> {
        let (survey, node_id) = self.healthy(client, left).await?;
        let member =
            survey.member(node_id).ok_or(format!("node {node_id} is no longer a member of the cluster"))?.clone();

        if node_id == survey.leader.node_id && survey.leader.members.iter().filter(|member| member.voter).count() > 1 {
            let leader = client.transfer_leader(None).await;
            let leader = leader.map_err(|error| format!("node {node_id} did not hand the leadership over: {error}"))?;
            say(&format!("node {node_id} handed the leadership over to node {leader}"))?;
        }

        let before = survey.answers.get(&node_id).and_then(|answer| answer.as_ref().ok());
        let before = before.map(|status| status.start.clone()).unwrap_or_default();
        // What is committed now is what the node must have again before the next one may go down.
        let tip = survey.leader.committed_index;
        let deadline = Instant::now() + self.limit;

        match &self.with {
            Some(command) => self.run_command(&expand(command, &member)?, node_id).await?,
            None => say(&format!(
                "restart node {node_id} ({}) now; this goes on by itself when it is back",
                show::text(&member.client_address)
            ))?,
        }

        self.is_back(client, (node_id, &member.client_address), &before, tip, deadline).await?;
        say(&format!("node {node_id} is back and has caught up"))?;
        Ok(node_id)
    }

    async fn run_command(&self, command: &str, node_id: u64) -> Result<(), String> {
        say(&format!("node {node_id}: {command}"))?;
        let mut child = Command::new("sh");
        let child = child.arg("-c").arg(command).stdin(Stdio::null()).kill_on_drop(true).spawn();
        let mut child = child.map_err(|error| format!("the command for node {node_id} could not be run: {error}"))?;
        let ended = timeout(self.limit, child.wait()).await;
        let ended = ended.map_err(|_| format!("the command for node {node_id} did not end within {:?}", self.limit))?;
        let ended = ended.map_err(|error| format!("the command for node {node_id} was lost: {error}"))?;
        if ended.success() { Ok(()) } else { Err(format!("the command for node {node_id} ended with {ended}")) }
    }

    /// Waits until a node is a new process that serves and has applied `tip`. A program from before versions does not name its start: then
    /// a moment without an answer must be seen.
    async fn is_back(
        &self,
        client: &Client,
        (node_id, address): (u64, &str),
        before: &str,
        tip: u64,
        deadline: Instant,
    ) -> Result<(), String> {
        let mut was_down = false;
        loop {
            let state = match self.ask(client, address).await {
                Err(why) => {
                    was_down = true;
                    format!("does not answer ({why})")
                }
                Ok(status) if status.node_id != node_id => {
                    return Err(format!("node {} answers at the address of node {node_id}, {address}", status.node_id));
                }
                Ok(status) if is_same_process(&status.start, before, was_down) => {
                    "is still the process from before".to_owned()
                }
                Ok(status) if !status.serving => format!("does not serve: {}", status.trouble),
                Ok(status) if status.applied_index < tip => {
                    format!("has applied {} of {tip} entries", status.applied_index)
                }
                Ok(_) => return Ok(()),
            };

            if Instant::now() >= deadline {
                return Err(format!("node {node_id} is not back within {:?}: it {}", self.limit, show::text(&state)));
            }

            sleep(LOOK).await;
        }
    }

    /// The cluster before the first restart. A leader may just be elected, so one is waited for; every other doubt counts at once.
    async fn first_survey(&self, client: &Client) -> Result<RestartSurvey, Failure> {
        let deadline = Instant::now() + self.cluster.timeout;
        loop {
            match self.survey(client).await {
                Err(_) if Instant::now() < deadline => sleep(LOOK).await,
                survey => return survey,
            }
        }
    }

    /// Waits until there is no doubt about the cluster, and the leader says that the next node may be taken down: the node before may still
    /// catch up, or a leader be elected. Returns the id of that node.
    async fn healthy(&self, client: &Client, left: &BTreeSet<u64>) -> Result<(RestartSurvey, u64), String> {
        let deadline = Instant::now() + self.limit;
        loop {
            let doubt = match self.survey(client).await {
                Ok(survey) => {
                    // The leadership may have moved since the last one.
                    let follower = left.iter().find(|id| **id != survey.leader.node_id);
                    let next = follower.or(left.first()).copied().ok_or("no node is left")?;
                    match survey.doubt().or_else(|| self.unsafe_to_stop(&survey, next)) {
                        None => return Ok((survey, next)),
                        Some(doubt) => doubt,
                    }
                }
                Err(failure) => failure.message,
            };

            if Instant::now() >= deadline {
                return Err(doubt);
            }
            sleep(LOOK).await;
        }
    }

    fn unsafe_to_stop(&self, survey: &RestartSurvey, node_id: u64) -> Option<String> {
        let member = survey.member(node_id).filter(|member| !member.safe_to_stop && !self.allow_outage)?;
        Some(format!("node {node_id} may not be taken down now: {}", show::text(&member.unsafe_reason)))
    }

    /// Asks all endpoints, and all members that the leader names.
    async fn survey(&self, client: &Client) -> Result<RestartSurvey, Failure> {
        let asked = join_all(client.endpoints().iter().map(|address| self.ask(client, address))).await;

        let mut leading: Vec<_> = asked.iter().filter_map(|answer| answer.as_ref().ok()).collect();
        // The leader may not be among the endpoints.
        let named = leading.iter().flat_map(|status| status.members.iter().find(|it| it.node_id == status.leader_id));
        let named: BTreeSet<_> = named.map(|member| member.client_address.clone()).collect();
        let named = join_all(named.iter().map(|address| self.ask(client, address))).await;

        leading.extend(named.iter().filter_map(|answer| answer.as_ref().ok()));
        leading.retain(|status| status.role() == Role::Leader && status.serving);

        // A leader that was cut off may still think that it leads: the later term counts.
        let Some(leader) = leading.into_iter().max_by_key(|status| status.term).cloned() else {
            let why = asked.into_iter().find_map(Result::err).map(|why| format!(": {why}")).unwrap_or_default();
            return Err(Failure::new(Exit::NoCluster, format!("no node serves as the leader{why}")));
        };

        let answers =
            leader.members.iter().map(async |member| (member.node_id, self.ask(client, &member.client_address).await));
        let answers = join_all(answers).await.into_iter().collect();
        Ok(RestartSurvey { leader, answers })
    }

    async fn ask(&self, client: &Client, address: &str) -> Result<StatusResponse, String> {
        let channel = client.channel_to(address).map_err(|error| error.to_string())?;
        let ask = async {
            let answer = ClusterClient::new(channel).status(StatusRequest::default()).await;
            answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
        };
        let late = |_| Err(format!("no answer within {:?}", self.node_timeout));
        timeout(self.node_timeout, ask).await.unwrap_or_else(late)
    }
}

impl RestartSurvey {
    fn member(&self, node_id: u64) -> Option<&Member> {
        self.leader.members.iter().find(|member| member.node_id == node_id)
    }

    /// Why no further node may be restarted now, if none may.
    fn doubt(&self) -> Option<String> {
        self.leader.members.iter().find_map(|member| {
            let id = member.node_id;

            // The first doubt is told: what a node of another id or cluster says of itself would mislead.
            match self.answers.get(&id) {
                Some(Ok(status)) if status.node_id != id => {
                    Some(format!("node {} answers at the address of node {id}: correct the addresses", status.node_id))
                }
                Some(Ok(status)) if status.cluster_id != self.leader.cluster_id => {
                    Some(format!("node {id} belongs to cluster {}", show::text(&status.cluster_id)))
                }
                Some(Ok(status)) if !status.serving => {
                    Some(format!("node {id} does not serve: {}", show::text(&status.trouble)))
                }
                Some(Ok(_)) if !member.trouble.is_empty() => {
                    Some(format!("node {id}: it {}", show::text(&member.trouble)))
                }
                Some(Ok(_)) => None,
                Some(Err(why)) => Some(format!(
                    "node {id} ({}) is down: {}; start it, or remove or replace it",
                    show::text(&member.client_address),
                    show::text(why)
                )),
                None => Some(format!("node {id} was not asked")),
            }
        })
    }
}

/// Whether a node that answers is still the same process. If the program names its start, one missing answer does not mean that it was
/// restarted.
fn is_same_process(start: &str, before: &str, was_down: bool) -> bool {
    start == before && (!was_down || !before.is_empty())
}

fn stopped(why: &str) -> Failure {
    Failure::new(Exit::Error, format_args!("the rolling restart stopped: {why}"))
}

/// A line of progress.
fn say(text: &str) -> Result<(), String> {
    deliver(&format!("{text}\n")).map_err(|error| format!("stdout is closed: {error}"))
}

/// Refuses names in braces that are no placeholders: a typo would reach the shell. `${name}` is the shell's.
fn check_placeholders(command: &str) -> Result<(), Failure> {
    let mut rest = command;
    while let Some(at) = rest.find('{') {
        let is_shells = rest[..at].ends_with('$');
        let name = rest[at..].find('}').map(|end| &rest[at..=at + end]);
        if let Some(name) = name.filter(|name| !is_shells && !PLACEHOLDERS.contains(name) && is_name(name)) {
            let text = format!("--with: unknown placeholder {name}: use {}", PLACEHOLDERS.join(", "));
            return Err(Failure::new(Exit::Usage, text));
        }
        rest = &rest[at + 1..];
    }
    Ok(())
}

fn is_name(braced: &str) -> bool {
    let name = braced.trim_matches(['{', '}']);
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '_')
}

/// The command for a node. Addresses come from the cluster, so what the shell could take for its own is refused.
fn expand(command: &str, member: &Member) -> Result<String, String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || ".:-_[]%".contains(letter);
    for address in [&member.client_address, &member.peer_address] {
        if !address.chars().all(plain) {
            return Err(format!(
                "the address {address:?} of node {} has letters that a shell could take for its own",
                member.node_id
            ));
        }
    }

    let host = member.client_address.rsplit_once(':').map_or(member.client_address.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok(command
        .replace("{host}", host)
        .replace("{node_id}", &member.node_id.to_string())
        .replace("{client_address}", &member.client_address)
        .replace("{peer_address}", &member.peer_address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node_id: u64, client_address: &str) -> Member {
        let client_address = client_address.to_owned();
        Member { node_id, client_address, peer_address: "h:2".into(), voter: true, ..Member::default() }
    }

    #[test]
    fn the_command_names_the_node() {
        let command = "ssh {host} restart {node_id} {client_address} {peer_address} ${HOME} '{a,b}'";
        check_placeholders(command).map_err(|failure| failure.message).unwrap();
        let expanded = expand(command, &member(3, "[2001:db8::7]:7420")).unwrap();
        assert_eq!(expanded, "ssh 2001:db8::7 restart 3 [2001:db8::7]:7420 h:2 ${HOME} '{a,b}'");
        let refused = check_placeholders("ssh {hots}").unwrap_err();
        assert!(refused.message.contains("unknown placeholder {hots}: use {host}, {node_id}"), "{}", refused.message);
        assert!(expand("ssh {host}", &member(3, "$(reboot):1")).unwrap_err().contains("a shell could take"));
    }

    #[test]
    fn an_answer_that_did_not_come_is_no_restart() {
        assert!(is_same_process("7-1", "7-1", false) && is_same_process("7-1", "7-1", true));
        assert!(!is_same_process("8-1", "7-1", false) && !is_same_process("8-1", "7-1", true));
        // A program that does not name its start.
        assert!(is_same_process("", "", false) && !is_same_process("", "", true));
    }

    #[test]
    fn a_member_that_is_down_or_does_not_serve_is_a_doubt() {
        let members = vec![member(1, "a:1"), member(2, "b:1")];
        let status = |node_id, serving| StatusResponse { node_id, serving, ..StatusResponse::default() };
        let leader = StatusResponse { members, ..status(1, true) };
        let doubt = |second| {
            let answers = BTreeMap::from([(1, Ok(status(1, true))), (2, second)]);
            RestartSurvey { leader: leader.clone(), answers }.doubt()
        };
        assert_eq!(doubt(Ok(status(2, true))), None);
        assert!(doubt(Ok(status(2, false))).unwrap().contains("node 2 does not serve"));
        assert!(doubt(Ok(status(3, true))).unwrap().contains("node 3 answers at the address of node 2"));
        assert!(doubt(Err("refused".into())).unwrap().contains("node 2 (b:1) is down: refused"));
        let troubled = RestartSurvey {
            leader: StatusResponse {
                members: vec![Member { trouble: "does not catch up".into(), ..member(1, "a:1") }],
                ..status(1, true)
            },
            answers: BTreeMap::from([(1, Ok(status(1, true)))]),
        };
        assert!(troubled.doubt().unwrap().contains("does not catch up"));
    }
}
