//! The cluster of a run, from its first start to the one through the links.

use std::{io, path::Path};

use lockkeeper_config::{AuditConfig, RaftConfig};
use lockkeeper_local::{ClusterOptions, LocalCluster};

use super::{LIVENESS_BOUND, RunError, RunOptions};
use crate::{
    links::Links,
    nemesis::{Group, Schedule, inject, roster::Roster, tools::Tools, turns::NodePrograms},
    parties::programs::Surroundings,
    record::{HistoryClock, Recorder},
    trail::TrailFiles,
};

/// A small number, so that a node that was away needs a snapshot, and a restarted node begins with one.
const SNAPSHOT_ENTRIES: u64 = 25;
const KEEP_ENTRIES: u64 = 10;
/// Number of nodes that can join during one run. The number of links rises with its square.
const SPARES_MAX: u64 = 16;

/// A cluster whose nodes reach each other through links.
pub(super) struct RoutedCluster {
    pub(super) cluster: LocalCluster,
    pub(super) links: Links,
    pub(super) tools: Tools,
    pub(super) node_programs: NodePrograms,
    pub(super) trail: Option<TrailFiles>,
    pub(super) roster: Roster,
}

impl RoutedCluster {
    /// The settings of programs of the user's own, with new links to the ports of other protocols.
    pub(super) fn surroundings(
        &mut self,
        options: &RunOptions,
        parts: &Path,
        timeline: HistoryClock,
    ) -> io::Result<Surroundings> {
        let Self { cluster, links, .. } = self;
        let endpoints = cluster.nodes().map(|node| links.client_address(node.id())).collect::<Vec<_>>().join(",");

        Ok(Surroundings {
            endpoints,
            dynamodb_endpoints: through(links, cluster.dynamodb_endpoints(), options.seed)?,
            etcd_endpoints: through(links, cluster.etcd_endpoints(), options.seed)?,
            redis_endpoints: through(links, cluster.redis_endpoints(), options.seed)?,
            parts: parts.to_owned(),
            log: options.directory.join("programs.log"),
            timeline,
        })
    }
}

/// The number of nodes that may join during a run. Each change of the membership may need one, and another one before it.
fn spares(options: &RunOptions) -> u64 {
    if options.faults.iter().any(|fault| fault.group() == Group::Membership) {
        (2 * Schedule::new(&options.faults, options.seed).within(options.duration).len() as u64 + 2).min(SPARES_MAX)
    } else {
        0
    }
}

/// Leads each of these endpoints through a link of its own. Returns the new ones with commas between.
fn through(links: &mut Links, endpoints: Vec<String>, seed: u64) -> io::Result<String> {
    let linked = endpoints.into_iter().map(|endpoint| match endpoint.split_once("://") {
        Some((scheme, address)) => Ok(format!("{scheme}://{}", links.to_other(address, seed)?)),
        None => links.to_other(&endpoint, seed),
    });
    Ok(linked.collect::<io::Result<Vec<_>>>()?.join(","))
}

/// Returns why this run cannot restore a cluster from a backup, if it cannot.
fn no_restore(options: &RunOptions) -> Option<&'static str> {
    if options.tls {
        Some("the certificates of the clients that run are for the lost cluster alone")
    } else if !options.programs.is_empty() {
        Some("the programs of the user's own do not know of it")
    } else {
        None
    }
}

/// Returns why this run cannot change the membership, if it cannot.
fn no_changes(options: &RunOptions) -> Option<&'static str> {
    let is_mixed = options.earlier.is_some();
    is_mixed.then_some("the last node that runs the earlier program could leave, and the cluster version would rise")
}

/// Returns why this run has no audit files, if it has none.
fn no_audit(options: &RunOptions) -> Option<&'static str> {
    (!options.audit).then_some("the nodes write no audit trail")
}

/// Founds the cluster with direct addresses, on which its nodes must agree. Then routes it through the links.
pub(super) async fn start(
    options: &RunOptions,
    mut node_programs: NodePrograms,
    recorder: &Recorder,
) -> Result<RoutedCluster, RunError> {
    let trail = if options.audit { Some(TrailFiles::below(&options.directory)?) } else { None };
    let directory = trail.as_ref().map(|trail| trail.directory().to_owned());
    let audit =
        directory.map_or_else(AuditConfig::default, |directory| AuditConfig { directory, ..AuditConfig::default() });
    let raft = RaftConfig { snapshot_entries: SNAPSHOT_ENTRIES, keep_entries: KEEP_ENTRIES, ..RaftConfig::default() };
    let founder = node_programs.founder();
    let mut cluster = LocalCluster::start(ClusterOptions {
        nodes: Some(options.nodes),
        directory: Some(options.directory.join("nodes")),
        raft,
        tls: options.tls,
        audit,
        environment: founder.environment.clone(),
        dynamodb: !options.programs.is_empty(),
        etcd: !options.programs.is_empty(),
        redis: !options.programs.is_empty(),
        ..ClusterOptions::new(&founder.path)
    })
    .await?;

    let mut tools = Tools::find(no_restore(options), no_changes(options), no_audit(options));
    if let Some(pid) = cluster.node(1).pid() {
        tools.try_on(pid).await;
    }
    cluster.stop().await;

    let members = cluster.node(1).config().members.clone();
    let first = options.nodes as u64 + 1;
    let spares = cluster.spare(first..first + spares(options))?;
    let links = Links::with_spares(&members, &spares, options.seed)?;
    cluster.foresee(&spares)?;
    cluster.route(|node, member| links.member(node, member))?;

    let ids: Vec<u64> = cluster.nodes().map(lockkeeper_local::LocalNode::id).collect();
    for id in ids {
        tools.fake_clock(&mut cluster, id)?;
        inject::start(&mut cluster, id, &mut node_programs, &mut tools, recorder)?;
    }

    cluster.ready(LIVENESS_BOUND).await?;
    if let Some(pid) = cluster.node(1).pid() {
        tools.check_loaded(pid);
    }
    let all = members.into_iter().chain(spares.iter().cloned()).collect();
    let roster = Roster { initial: options.nodes, all, spares: spares.into_iter().rev().collect() };
    Ok(RoutedCluster { cluster, links, tools, node_programs, trail, roster })
}
