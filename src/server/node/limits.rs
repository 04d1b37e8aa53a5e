//! The limits of a node for what its clients may have under way.

use lockkeeper_dynamodb::DynamoLimits;
use lockkeeper_raft::proposals::proposer::ProposalLimits;
use lockkeeper_redis::RedisLimits;
use lockkeeper_zookeeper::ZookeeperLimits;

use crate::{
    service::{LongReadLimits, WaitLimits},
    unread::UnreadAnswerLimits,
    v1::PipelineLimits,
};

/// All of them. Every real node has the default: they follow from what a node's memory and its disk can take, and nobody has to set them. A
/// simulation draws small ones, so that runs reach them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeLimits {
    /// The limits of what waits to be proposed.
    pub proposals: ProposalLimits,
    /// The limits of pipelines.
    pub pipelines: PipelineLimits,
    /// The limits of acquires that wait.
    pub waits: WaitLimits,
    /// The limits of reads that visit much.
    pub long_reads: LongReadLimits,
    /// The limits of answers that are not read, by `lockkeeper.v1` and by etcd's API, each.
    pub unread: UnreadAnswerLimits,
    /// The limits of the port for DynamoDB's clients.
    pub dynamodb: DynamoLimits,
    /// The limits of the port for Redis' clients.
    pub redis: RedisLimits,
    /// The limits of the port for ZooKeeper's clients.
    pub zookeeper: ZookeeperLimits,
}
