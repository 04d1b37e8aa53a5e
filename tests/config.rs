//! The sample configurations: they are valid, differ only where they must, and name every key.

use std::{collections::BTreeSet, fs, path::PathBuf};

use lockkeeper::config::{Config, Overrides, RaftConfig};

const NODES: [u64; 3] = [1, 2, 3];

fn path(node_id: u64) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("cluster-configs/node{node_id}.toml"))
}

fn sample(node_id: u64) -> Config {
    Config::load(&path(node_id), Overrides::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Collects all keys of a value, as `raft.heartbeat_ms`; for a list, the keys of its elements.
fn keys(value: &toml::Value, prefix: &str, found: &mut BTreeSet<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                keys(value, &key, found);
                found.insert(key);
            }
        }
        toml::Value::Array(elements) => elements.iter().for_each(|element| keys(element, prefix, found)),
        toml::Value::String(_)
        | toml::Value::Integer(_)
        | toml::Value::Float(_)
        | toml::Value::Boolean(_)
        | toml::Value::Datetime(_) => {}
    }
}

#[test]
fn each_is_usable_without_a_warning() {
    for node_id in NODES {
        let config = sample(node_id);
        assert_eq!(config.warnings(), Vec::<String>::new());
        assert_eq!(config.node_id, node_id);
        assert_eq!(config.data_dir, PathBuf::from(format!("data/node{node_id}")));
        assert_eq!(config.members.len(), NODES.len());
    }
}

#[test]
fn they_differ_only_in_what_is_a_nodes_own() {
    let first = sample(1);
    for node_id in NODES {
        let this = sample(node_id);
        let expected = Config {
            node_id,
            data_dir: this.data_dir.clone(),
            client_listen: this.client_listen.clone(),
            peer_listen: this.peer_listen.clone(),
            ..first.clone()
        };
        assert_eq!(this, expected);
    }
}

#[test]
fn they_name_every_key() {
    let mut expected = BTreeSet::new();
    keys(&toml::Value::try_from(sample(1)).unwrap(), "", &mut expected);
    for node_id in NODES {
        let text = fs::read_to_string(path(node_id)).unwrap();
        let mut found = BTreeSet::new();
        keys(&toml::from_str(&text).unwrap(), "", &mut found);
        assert_eq!(found, expected, "cluster-configs/node{node_id}.toml");
    }
}

#[test]
fn the_explained_one_states_the_defaults() {
    let config = sample(1);
    assert_eq!(config.raft, RaftConfig::default());
    assert_eq!(config.disk, Config::default().disk);
    assert_eq!(config.audit, Config::default().audit);
    assert_eq!(config.log, Config::default().log);
    let text = fs::read_to_string(path(1)).unwrap();
    let RaftConfig {
        heartbeat_ms,
        election_timeout_ms_min,
        election_timeout_ms_max,
        snapshot_entries,
        keep_entries,
        backlog_bytes_max,
        compare_tables_ms,
    } = config.raft;
    for stated in [
        format!("Default: {heartbeat_ms}."),
        format!("Defaults: {election_timeout_ms_min} and {election_timeout_ms_max}."),
        format!("Default: {snapshot_entries}."),
        format!("Default: {keep_entries}."),
        format!("Default: {backlog_bytes_max}."),
        format!("Default: {compare_tables_ms}."),
        format!("Default: {}.", config.disk.reserve_bytes),
    ] {
        assert!(text.contains(&stated), "{stated}");
    }
}
