//! Messages about the cluster.

use std::{convert::Infallible, fmt::Write as _};

use serde_json::json;

use super::{DevOutput, say};
use crate::{
    client::TlsFiles,
    local::{LocalCluster, LocalNode},
};

/// The nodes and their endpoints.
pub(super) fn endpoints(cluster: &LocalCluster, output: DevOutput) -> Result<String, serde_json::Error> {
    match output {
        DevOutput::Text => Ok(text(cluster)),
        DevOutput::Json => json_text(cluster),
    }
}

/// Reports each node that dies. Never returns.
pub(super) async fn deaths(cluster: &mut LocalCluster) -> Infallible {
    loop {
        let (node_id, status) = cluster.next_death().await;
        let node = cluster.node(node_id);
        say(format_args!("node {node_id} exited: {status}; its log is {}", node.log_file().display()));
        say(format_args!("to restart it: {}", node.command_line()));
    }
}

fn text(cluster: &LocalCluster) -> String {
    let mut text = format!("the cluster serves; its data are in {}\n", cluster.path().display());
    for node in cluster.nodes() {
        let pid = node.pid().unwrap_or_default();
        // Writing to a string does not fail.
        let _ = writeln!(text, "node {}  {}  pid {pid}", node.id(), node.endpoint());
    }
    let variables = variables(cluster).into_iter().map(|(name, value)| format!("export {name}={value}"));
    text + &variables.collect::<Vec<_>>().join("\n")
}

/// The environment variables by which commands find the cluster.
pub(super) fn variables(cluster: &LocalCluster) -> Vec<(&'static str, String)> {
    let mut variables = vec![("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","))];
    variables.push(("LOCKKEEPER_HTTP_ENDPOINTS", cluster.http_endpoints().join(",")));

    let dynamodb = cluster.dynamodb_endpoints();
    if let Some(first) = dynamodb.first() {
        variables.push(("LOCKKEEPER_DYNAMODB_ENDPOINT", first.clone()));
        variables.push(("LOCKKEEPER_DYNAMODB_ENDPOINTS", dynamodb.join(",")));
        if let Some((key, secret)) = cluster.dynamodb_key() {
            variables.push(("AWS_ACCESS_KEY_ID", key));
            variables.push(("AWS_SECRET_ACCESS_KEY", secret));
        }
        if let Some(TlsFiles { ca, .. }) = cluster.client_files() {
            variables.push(("AWS_CA_BUNDLE", ca.display().to_string()));
        }
    }

    let etcd = cluster.etcd_endpoints();
    if !etcd.is_empty() {
        variables.push(("LOCKKEEPER_ETCD_ENDPOINTS", etcd.join(",")));
        variables.push(("ETCDCTL_API", "3".to_owned()));
        variables.push(("ETCDCTL_ENDPOINTS", etcd.join(",")));
        if let Some(TlsFiles { ca, own: Some((certificate, key)) }) = cluster.client_files() {
            variables.push(("ETCDCTL_CACERT", ca.display().to_string()));
            variables.push(("ETCDCTL_CERT", certificate.display().to_string()));
            variables.push(("ETCDCTL_KEY", key.display().to_string()));
        }
    }

    let redis = cluster.redis_endpoints();
    if let Some(first) = redis.first() {
        let scheme = if cluster.client_files().is_some() { "rediss" } else { "redis" };
        variables.push(("REDIS_URL", format!("{scheme}://{first}")));
        variables.push(("LOCKKEEPER_REDIS_ENDPOINTS", redis.join(",")));
    }

    let zookeeper = cluster.zookeeper_endpoints();
    if !zookeeper.is_empty() {
        variables.push(("ZOOKEEPER_CONNECT", zookeeper.join(",")));
    }

    if let Some(TlsFiles { ca, own }) = cluster.client_files() {
        variables.push(("LOCKKEEPER_CA", ca.display().to_string()));
        if let Some((certificate, key)) = own {
            variables.push(("LOCKKEEPER_CERT", certificate.display().to_string()));
            variables.push(("LOCKKEEPER_KEY", key.display().to_string()));
        }
    }
    variables
}

fn json_text(cluster: &LocalCluster) -> Result<String, serde_json::Error> {
    let node = |node: &LocalNode| {
        json!({
            "node_id": node.id(),
            "endpoint": node.endpoint(),
            "peer_address": node.config().peer_listen,
            "pid": node.pid(),
            "config": node.config_file(),
            "log": node.log_file(),
        })
    };

    serde_json::to_string(&json!({
        "cluster_id": cluster.nodes().next().map(|node| &node.config().cluster_id),
        "directory": cluster.path(),
        "endpoints": cluster.endpoints(),
        "nodes": cluster.nodes().map(node).collect::<Vec<_>>(),
    }))
}
