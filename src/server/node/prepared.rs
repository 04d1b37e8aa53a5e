//! Everything that a node needs before it serves: access rules, the audit files, Raft, and the services.
//!
//! Nothing listens yet and no task runs but those of Raft, so a failure here leaves nothing behind.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use openraft::{RaftLogReader, storage::RaftLogStorage};
use tokio_util::sync::CancellationToken;

use lockkeeper_audit::{Rotation, Sink};
use lockkeeper_config::{AuditConfig, Config, ConfiguredMember, TracesConfig};
use lockkeeper_environment::{Blocking, Environment, Tasks};
use lockkeeper_planted::VERSION;
use lockkeeper_raft::{
    Replica,
    identity::{ClusterId, NodeIdentity},
    members::{Members, forming::FormingConfig},
    network::hello,
    snapshot::SnapshotStore,
    types::TypeConfig,
};
use lockkeeper_table::MemberNode;
use lockkeeper_traces::{ExportSettings as TraceSettings, Traces};
use lockkeeper_transport::{Connector, Listen};

use super::{
    Foundation, FurtherParts, Parts, RunningNode, ServeError,
    ports::{Acceptors, Listeners},
    replication::Replication,
    services::Services,
    stopped,
};
use crate::{
    access::{Access, earlier::EarlierClients},
    service::{ClientWaitLimit, ClientWaits, Local, LongReads},
};

impl<C: Connector> RunningNode<C> {
    /// Makes a node from its parts, with Raft running. Returns it with the further values that its ports need.
    pub(super) async fn prepare<L, S>(parts: Parts<L, C, S>) -> Result<(Self, Listeners<L>, Acceptors), ServeError>
    where
        L: Listen,
        S: RaftLogStorage<TypeConfig>,
    {
        let Parts { config, clients, peers, connector, environment, identity, mut log, snapshots, disk, further } =
            parts;
        let FurtherParts { limits, node_limits, tls, places, inspector, versions, replica: wanted_replica, .. } =
            further;
        let FurtherParts { dynamodb, etcd, redis, zookeeper, http, .. } = further;
        let listeners = Listeners { clients, peers, dynamodb, etcd, redis, zookeeper, http };

        let acceptors = Acceptors::new(tls.as_ref(), &environment)?;
        let access = Access::open(&config.auth, tls.is_some()).map_err(ServeError::Config)?;
        let earlier = config.earlier_cluster.as_ref();
        let earlier =
            earlier.map(|earlier| EarlierClients::new(earlier, &config.cluster_id, Arc::clone(&environment.clock)));
        let access = Arc::new(access.with_earlier(earlier.transpose().map_err(ServeError::Config)?));
        check_log(&identity, &mut log, &snapshots).await?;
        let audit = open_audit(&config, identity.cluster_id(), environment.blocking).await?;
        let plan = plan(&config);

        let limits = limits.unwrap_or_else(|| (&config.limits).into());
        let base = Foundation {
            config,
            limits,
            node_limits,
            connector,
            tls,
            environment,
            identity,
            disk,
            places,
            plan,
            audit,
        };
        let replication = Replication::start(&base, log, snapshots, versions, inspector).await?;
        let replica = replication.replica.clone();
        let members = members(&base.config, &replica, &base.identity, base.connector.clone());
        if let Some(wanted) = wanted_replica {
            // An error means that the test is over.
            let _ = wanted.send(replica.clone());
        }

        let stopping = CancellationToken::new();
        let traces = start_traces(&base.config, &base.environment)?;
        let local = Local {
            replica,
            members: members.clone(),
            random: Arc::clone(&base.environment.random),
            access,
            metrics: base.environment.metrics.clone(),
            limits_reached: Arc::default(),
            long_reads: Arc::new(LongReads::new(node_limits.long_reads)),
            waits: Arc::new(ClientWaits::new(ClientWaitLimit::AtNode(node_limits.waits.at_node))),
            forwarded_waits: Arc::new(ClientWaits::new(ClientWaitLimit::PassedOn(node_limits.waits.passed_on_for_one))),
            traces: traces.clone(),
            units: Arc::default(),
            span: None,
        };
        let mut services = Services::new(
            &base.config,
            node_limits,
            local,
            &base.environment,
            base.connector.clone(),
            stopping.clone(),
        );
        services.cluster.start = base.identity.start().to_string().into();
        services.cluster.tls = base.tls.clone();
        services.cluster.comparison = Some(Arc::clone(&replication.comparison));

        let node = Self { base, replication, members, services, traces, stopping };
        Ok((node, listeners, acceptors))
    }
}

/// Refuses a log that ends before an entry that this node is known to have had.
async fn check_log<S: RaftLogStorage<TypeConfig>>(
    identity: &NodeIdentity,
    log: &mut S,
    snapshots: &SnapshotStore,
) -> Result<(), ServeError> {
    let state = log.get_log_state().await.map_err(stopped)?;
    let vote = log.get_log_reader().await.read_vote().await.map_err(stopped)?;

    // The end of the log may have been purged. Then a snapshot has the last entry.
    let snapshot = snapshots.latest().and_then(|file| file.meta().last_log_id);
    let last = [state.last_log_id, state.last_purged_log_id, snapshot].into_iter().flatten().map(|id| id.index).max();
    Ok(identity.check_log(last, vote.is_some())?)
}

/// Opens the audit files, if this node writes any.
async fn open_audit(config: &Config, cluster: &ClusterId, blocking: Blocking) -> Result<Option<Sink>, ServeError> {
    let AuditConfig { directory, file_bytes, files_kept } = config.audit.clone();
    if directory.as_os_str().is_empty() {
        return Ok(None);
    }

    let cluster = cluster.clone();
    let rotation = Rotation { file_bytes, files_kept };
    let opened = blocking.run(move || Ok(Sink::open(&directory, cluster.as_str(), rotation))).await;
    Ok(Some(opened.map_err(stopped)??))
}

/// Starts to send traces, if they have an endpoint. Their task runs on the clients' runtime, so a slow collector delays no heartbeat.
fn start_traces(config: &Config, environment: &Environment) -> Result<Traces, ServeError> {
    let TracesConfig { endpoint, sample_ratio } = config.traces.clone();
    // A simulation has no collector.
    let Tasks::On(runtime) = &environment.clients else { return Ok(Traces::default()) };
    if endpoint.is_empty() {
        return Ok(Traces::default());
    }

    let attributes = vec![
        ("service.instance.id", config.node_id.to_string()),
        ("service.version", VERSION.to_owned()),
        ("lockkeeper.cluster_id", config.cluster_id.clone()),
    ];
    let settings = TraceSettings { endpoint, sample_ratio, service: "lockkeeper", attributes };

    let metrics = environment.metrics.clone();
    let started = Traces::start(settings, runtime, move |count| metrics.dropped_spans(count));
    started.map_err(|error| ServeError::Config(format!("traces.endpoint: {error}")))
}

/// What changes the membership: it greets a new member before it adds it.
fn members<C: Connector>(config: &Config, replica: &Replica, identity: &Arc<NodeIdentity>, connector: C) -> Members {
    let identity = Arc::clone(identity);
    let greet = Arc::new(move |address: String| -> BoxFuture<'static, _> {
        let identity = Arc::clone(&identity);
        let connector = connector.clone();
        Box::pin(async move { hello(&connector, &address, &identity, Vec::new()).await })
    });

    let round_max = Duration::from_millis(config.raft.election_timeout_ms_min);
    Members::new(replica.clone(), greet, &config.cluster_id, round_max)
}

/// The members of the cluster, as the configuration names them.
fn plan(config: &Config) -> FormingConfig {
    let node = |member: &ConfiguredMember| {
        let peer_address = member.peer_address.clone();
        let client_address = member.client_address.clone();
        (member.node_id, MemberNode { peer_address, client_address, ..MemberNode::default() })
    };
    FormingConfig { bootstrap: config.bootstrap, members: config.members.iter().map(node).collect() }
}
