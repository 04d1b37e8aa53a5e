//! The part of Sentinel that clients need to find a node by themselves: the leader is the master, and every node is a sentinel.

use super::{RedisSession, clients::unknown_subcommand};
use crate::{
    NodeAddress, RedisReply, RedisStore,
    commands::{Arguments, CommandResult, wrong_number},
    view::Stop,
};

impl<S: RedisStore> RedisSession<S> {
    /// Serves the part of SENTINEL that finds the master.
    pub(super) fn sentinel(&self, arguments: &Arguments<'_>) -> CommandResult {
        let subcommand = arguments[1].to_ascii_lowercase();

        match (subcommand.as_slice(), &arguments[2..]) {
            (b"get-master-addr-by-name", [_]) => Ok(self.master().map_or(RedisReply::NilArray, |node| {
                RedisReply::Array(vec![RedisReply::text(node.host), RedisReply::text(node.port.to_string())])
            })),
            (b"masters", []) => {
                let masters = self.node.options.master_names.iter().filter_map(|name| self.describe_master(name));
                Ok(RedisReply::Array(masters.collect()))
            }
            (b"master", [name]) => {
                let described = self.describe_master(&String::from_utf8_lossy(name));
                described.ok_or_else(|| Stop::refused("ERR No such master with that name"))
            }
            // Replicas are for reads that may be old, which no node serves.
            (b"replicas" | b"slaves", [_]) => Ok(RedisReply::Array(Vec::new())),
            (b"sentinels", [_]) => {
                let others = self.node.store().nodes().into_iter();
                Ok(RedisReply::Array(others.map(|node| describe_node(&node.host, &node, "sentinel")).collect()))
            }
            (b"ckquorum", [_]) => {
                let has_leader = self.node.store().has_leader();
                if has_leader {
                    let nodes = self.node.store().nodes().len();
                    let text = format!("OK {nodes} usable Sentinels. Quorum and failover authorization can be reached");
                    return Ok(RedisReply::Status(text.into_bytes()));
                }
                Err(Stop::refused("NOQUORUM Lockkeeper has no leader"))
            }
            (b"get-master-addr-by-name" | b"master" | b"masters" | b"replicas" | b"slaves" | b"sentinels", _) => {
                Err(wrong_number(&format!("sentinel|{}", String::from_utf8_lossy(&subcommand))))
            }
            _ => Err(unknown_subcommand("SENTINEL", arguments[1])),
        }
    }

    /// The node that leads, as far as this one knows.
    fn master(&self) -> Option<NodeAddress> {
        self.node.store().nodes().into_iter().find(|node| node.leads)
    }

    /// The leader in the words of Sentinel, if it is known.
    fn describe_master(&self, name: &str) -> Option<RedisReply> {
        let master = self.master()?;
        let RedisReply::Map(mut facts) = describe_node(name, &master, "master") else { return None };
        let others = self.node.store().nodes().len().saturating_sub(1);
        let quorum = others.div_ceil(2) + 1;
        for (fact, value) in [("num-slaves", 0), ("num-other-sentinels", others), ("quorum", quorum)] {
            facts.push((RedisReply::text(fact), RedisReply::text(value.to_string())));
        }
        Some(RedisReply::Map(facts))
    }
}

/// A node in the words of Sentinel.
fn describe_node(name: &str, node: &NodeAddress, flags: &str) -> RedisReply {
    let port = node.port.to_string();

    let facts = [
        ("name", name),
        ("ip", &node.host),
        ("port", &port),
        ("runid", ""),
        ("flags", flags),
        ("link-pending-commands", "0"),
        ("link-refcount", "1"),
        ("last-ping-sent", "0"),
        ("last-ok-ping-reply", "0"),
        ("last-ping-reply", "0"),
    ];
    RedisReply::Map(facts.into_iter().map(|(fact, value)| (RedisReply::text(fact), RedisReply::text(value))).collect())
}
