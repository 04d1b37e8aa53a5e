//! Limits of a node that a run has reached.
//!
//! A search for mistakes at a limit proves something only if it comes to the limit. A node notes here that it refuses, or keeps a caller
//! waiting, because of one, and a simulation asks for the numbers. Only builds that can have [planted bugs](crate::Planted) count.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::CAN_HAVE_BUGS;

/// Makes the enum, its list and its names of one table.
macro_rules! node_limits {
    ($($(#[$text:meta])+ $limit:ident = $name:literal,)+) => {
        /// A limit of a node for what its clients may have under way. Limits of the table are not among them: the table refuses by name.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum NodeLimit {
            $($(#[$text])+ $limit,)+
        }

        impl NodeLimit {
            /// All of them.
            pub const ALL: [Self; [$($name,)+].len()] = [$(Self::$limit,)+];

            /// The name for people.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$limit => $name,)+
                }
            }
        }
    };
}

node_limits! {
    /// The queue of commands is full.
    Queue = "queue",
    /// The queue of commands has no place left for one that asks for more.
    QueueReserved = "queue_reserved",
    /// A batch has as many commands as it may.
    BatchCommands = "batch_commands",
    /// A batch has no room for the bytes of a further command.
    BatchBytes = "batch_bytes",
    /// A batch has no room for the work of a further command.
    BatchUnits = "batch_units",
    /// A large command waits for the work of others.
    LargeUnits = "large_units",
    /// A large command waits for the bytes of others.
    LargeBytes = "large_bytes",
    /// Too many large commands wait.
    LargePlaces = "large_places",
    /// A large command of an order is refused, since it is not its turn.
    LargeInOrder = "large_in_order",
    /// A pipeline has as many acquires that may wait as it may.
    PipelineWaits = "pipeline_waits",
    /// A pipeline has no room for the bytes of a further acquire that may wait.
    PipelineWaitingBytes = "pipeline_waiting_bytes",
    /// A pipeline is not read, since it has as many other requests as it may.
    PipelineRequests = "pipeline_requests",
    /// A pipeline is not read, since its other requests have as many bytes as they may.
    PipelineBytes = "pipeline_bytes",
    /// All pipelines of the node have too many bytes for a further request.
    PipelineNodeBytes = "pipeline_node_bytes",
    /// As many acquires wait at a node as a client may have, beside those of others.
    WaitsAtNode = "waits_at_node",
    /// As many acquires of one client wait at a follower and its leader as followers may pass on.
    ForwardedWaits = "forwarded_waits",
    /// A follower passes on as many acquires that wait as it may.
    WaitsPassedOn = "waits_passed_on",
    /// As many calls wait for the end of one wait as may.
    CallsPerWait = "calls_per_wait",
    /// Too many reads that visit much wait for their turn.
    LongReads = "long_reads",
    /// A read that visits much gave its place to that of another client.
    LongReadsGaveWay = "long_reads_gave_way",
    /// Answers that wait for one connection to read them take as many bytes as they may.
    UnreadOfConnection = "unread_of_connection",
    /// The same for the connections from one address.
    UnreadOfAddress = "unread_of_address",
    /// The same for all connections.
    UnreadOfNode = "unread_of_node",
    /// A transaction of Redis' clients has as many commands, or bytes, as one may.
    RedisQueued = "redis_queued",
    /// A connection of Redis' clients watches as many keys as one may.
    RedisWatched = "redis_watched",
    /// A connection of Redis' clients has no room for the bytes of a further watched key.
    RedisWatchedBytes = "redis_watched_bytes",
    /// A connection of Redis' clients has as many subscriptions as one may.
    RedisTopics = "redis_topics",
    /// There is no room for what Redis' clients send and have the node keep.
    RedisRequests = "redis_requests",
    /// There is no room for a reply to a Redis' client.
    RedisReplies = "redis_replies",
    /// A connection of Redis' clients runs no further command, since its replies are not read.
    RedisConnectionReplies = "redis_connection_replies",
    /// There is no room for what ZooKeeper's clients send.
    ZookeeperRequests = "zookeeper_requests",
    /// There is no room for an answer to a ZooKeeper's client.
    ZookeeperReplies = "zookeeper_replies",
    /// A connection of ZooKeeper's clients is not read, since its answers are not.
    ZookeeperConnectionReplies = "zookeeper_connection_replies",
    /// A connection of ZooKeeper's clients has as many watches as one may.
    ZookeeperWatches = "zookeeper_watches",
    /// There is no room for a watch of a ZooKeeper's client.
    ZookeeperWatchesBytes = "zookeeper_watches_bytes",
    /// There is no room for the bodies of DynamoDB's clients.
    DynamodbBodies = "dynamodb_bodies",
    /// There is no room for what the requests of DynamoDB's clients take in memory.
    DynamodbDecoded = "dynamodb_decoded",
}

static REACHED: [AtomicU64; NodeLimit::ALL.len()] = [const { AtomicU64::new(0) }; NodeLimit::ALL.len()];

impl NodeLimit {
    /// Notes that a node of this process has reached it. Without effect, and without cost, in a build that can have no planted bugs.
    pub fn note(self) {
        if CAN_HAVE_BUGS {
            REACHED[self as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often nodes of this process have reached it.
    pub fn noted(self) -> u64 {
        REACHED[self as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_under_a_name_of_its_own() {
        for (place, limit) in NodeLimit::ALL.into_iter().enumerate() {
            assert!(NodeLimit::ALL[..place].iter().all(|other| other.name() != limit.name()));

            let before = limit.noted();
            limit.note();
            assert_eq!(limit.noted() - before, u64::from(CAN_HAVE_BUGS));
        }
    }
}
