//! The calls of gRPC that are served, by their paths, and what is known of each before its message is read: whether its caller must be, and
//! how large the message may be.

/// Bytes of a message that writes. A transaction takes less than half of them; one that is larger is refused in etcd's words.
pub(crate) const WRITE_BYTES_MAX: usize = 4 << 20;
/// Bytes of a message with one value.
const VALUE_BYTES_MAX: usize = 512 << 10;
/// Bytes of a message with a few keys.
pub(crate) const KEYS_BYTES_MAX: usize = 64 << 10;
/// Bytes of a message with numbers, or with a name and a password.
pub(crate) const SHORT_BYTES_MAX: usize = 4 << 10;

/// The calls of callers that are known, the most frequent ones first, and the limit of the message. A stream of messages has none here.
const OF_KNOWN_CALLERS: [(&str, Option<usize>); 21] = [
    ("/etcdserverpb.KV/Txn", Some(WRITE_BYTES_MAX)),
    ("/etcdserverpb.KV/Range", Some(KEYS_BYTES_MAX)),
    ("/etcdserverpb.KV/Put", Some(WRITE_BYTES_MAX)),
    ("/etcdserverpb.KV/DeleteRange", Some(KEYS_BYTES_MAX)),
    ("/v3lockpb.Lock/Lock", Some(KEYS_BYTES_MAX)),
    ("/v3lockpb.Lock/Unlock", Some(KEYS_BYTES_MAX)),
    ("/etcdserverpb.Lease/LeaseGrant", Some(SHORT_BYTES_MAX)),
    ("/etcdserverpb.Lease/LeaseRevoke", Some(SHORT_BYTES_MAX)),
    ("/etcdserverpb.Lease/LeaseKeepAlive", None),
    ("/etcdserverpb.Lease/LeaseTimeToLive", Some(SHORT_BYTES_MAX)),
    ("/etcdserverpb.Lease/LeaseLeases", Some(SHORT_BYTES_MAX)),
    ("/etcdserverpb.Watch/Watch", None),
    ("/etcdserverpb.KV/Compact", Some(SHORT_BYTES_MAX)),
    ("/v3electionpb.Election/Campaign", Some(VALUE_BYTES_MAX)),
    ("/v3electionpb.Election/Proclaim", Some(VALUE_BYTES_MAX)),
    ("/v3electionpb.Election/Leader", Some(KEYS_BYTES_MAX)),
    ("/v3electionpb.Election/Observe", Some(KEYS_BYTES_MAX)),
    ("/v3electionpb.Election/Resign", Some(KEYS_BYTES_MAX)),
    ("/etcdserverpb.Cluster/MemberList", Some(SHORT_BYTES_MAX)),
    ("/etcdserverpb.Maintenance/Alarm", Some(SHORT_BYTES_MAX)),
    ("/etcdserverpb.Maintenance/Status", Some(SHORT_BYTES_MAX)),
];
/// The calls by which callers make themselves known.
const OF_STRANGERS: [&str; 2] = ["/etcdserverpb.Auth/Authenticate", "/etcdserverpb.Auth/AuthStatus"];

/// Whether a call is for callers that are known. Those by which they make themselves known, and calls that are not served, are not.
pub(crate) fn needs_identity(path: &str) -> bool {
    OF_KNOWN_CALLERS.iter().any(|(call, _)| *call == path)
}

/// The largest message of a call of gRPC, by its path, if its request is one message. Nothing for streams, for calls that are not served,
/// and for those of JSON.
pub fn request_bytes_max(path: &str) -> Option<usize> {
    match OF_KNOWN_CALLERS.iter().find(|(call, _)| *call == path) {
        Some((_, bytes_max)) => *bytes_max,
        None => OF_STRANGERS.contains(&path).then_some(SHORT_BYTES_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths of all calls, and whether their requests are streams, from the texts that declare them.
    fn declared_calls() -> Vec<(String, bool)> {
        let mut calls = Vec::new();
        for text in
            [include_str!("proto/rpc.proto"), include_str!("proto/lock.proto"), include_str!("proto/election.proto")]
        {
            let mut package = "";
            let mut service = "";
            for line in text.lines().map(str::trim) {
                if let Some(name) = line.strip_prefix("package ") {
                    package = name.trim_end_matches(';');
                } else if let Some(name) = line.strip_prefix("service ") {
                    service = name.trim_end_matches(" {");
                } else if let Some((name, types)) = line.strip_prefix("rpc ").and_then(|line| line.split_once('(')) {
                    calls.push((format!("/{package}.{service}/{name}"), types.starts_with("stream ")));
                }
            }
        }
        calls
    }

    /// The message of a call that were forgotten would be read for strangers.
    #[test]
    fn each_call_is_for_known_callers_but_those_that_tell_who_calls() {
        let calls = declared_calls();
        for (call, _) in &calls {
            assert_eq!(needs_identity(call), !call.starts_with("/etcdserverpb.Auth/"), "{call}");
        }
        for call in OF_KNOWN_CALLERS.iter().map(|(call, _)| call).chain(&OF_STRANGERS) {
            assert!(calls.iter().any(|(declared, _)| declared == call), "there is no call {call}");
        }
    }

    #[test]
    fn each_request_has_a_limit_unless_it_is_a_stream() {
        for (call, is_stream) in declared_calls() {
            assert_eq!(request_bytes_max(&call).is_none(), is_stream, "{call}");
        }
        assert_eq!(request_bytes_max("/v3/kv/put"), None, "JSON has its own");
    }
}
