//! The calls of gRPC that are served, by their paths, and what is known of each before its message is read: whether its caller must be.

/// The calls of callers that are known, the most frequent ones first.
const OF_KNOWN_CALLERS: [&str; 21] = [
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.KV/Put",
    "/etcdserverpb.KV/DeleteRange",
    "/v3lockpb.Lock/Lock",
    "/v3lockpb.Lock/Unlock",
    "/etcdserverpb.Lease/LeaseGrant",
    "/etcdserverpb.Lease/LeaseRevoke",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/etcdserverpb.Lease/LeaseTimeToLive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.KV/Compact",
    "/v3electionpb.Election/Campaign",
    "/v3electionpb.Election/Proclaim",
    "/v3electionpb.Election/Leader",
    "/v3electionpb.Election/Observe",
    "/v3electionpb.Election/Resign",
    "/etcdserverpb.Cluster/MemberList",
    "/etcdserverpb.Maintenance/Alarm",
    "/etcdserverpb.Maintenance/Status",
];

/// Whether a call is for callers that are known. Those by which they make themselves known, and calls that are not served, are not.
pub(crate) fn needs_identity(path: &str) -> bool {
    OF_KNOWN_CALLERS.contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths of all calls, from the texts that declare them.
    fn declared_calls() -> Vec<String> {
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
                } else if let Some((name, _)) = line.strip_prefix("rpc ").and_then(|line| line.split_once('(')) {
                    calls.push(format!("/{package}.{service}/{name}"));
                }
            }
        }
        calls
    }

    /// The message of a call that were forgotten would be read for strangers.
    #[test]
    fn each_call_is_for_known_callers_but_those_that_tell_who_calls() {
        let calls = declared_calls();
        for call in &calls {
            assert_eq!(needs_identity(call), !call.starts_with("/etcdserverpb.Auth/"), "{call}");
        }
        for call in OF_KNOWN_CALLERS {
            assert!(calls.iter().any(|declared| declared == call), "there is no call {call}");
        }
    }
}
