//! How large the message of a call may be, by the path of the call: what its names and data need, and no more.
//!
//! The clients' port reads no further than that, and hands a message over when its request is complete
//! ([`Settings::request_bytes_max`](lockkeeper_transport::Settings::request_bytes_max)).

use crate::wire::MESSAGE_BYTES_MAX;

/// Bytes of a message with names, numbers, a reason, and the ids of a session's open requests.
pub(crate) const SHORT_BYTES_MAX: usize = 32 << 10;
/// Bytes of a message with the data of one lock.
const DATA_BYTES_MAX: usize = 64 << 10;

/// The largest message of a call. Nothing for calls whose requests are streams, and for those that are not served.
pub(crate) fn request_bytes_max(path: &str) -> Option<usize> {
    match path {
        "/lockkeeper.v1.Locks/Acquire" => Some(MESSAGE_BYTES_MAX),
        "/lockkeeper.v1.Locks/Update" => Some(DATA_BYTES_MAX),
        "/lockkeeper.v1.Sessions/KeepAlive" | "/lockkeeper.v1.Locks/Pipeline" => None,
        path => ["/lockkeeper.v1.", "/grpc.health.v1.Health/"]
            .iter()
            .any(|service| path.starts_with(service))
            .then_some(SHORT_BYTES_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that is taken for one message would never reach its service.
    #[test]
    fn each_request_has_a_limit_unless_it_is_a_stream() {
        let mut streams = Vec::new();
        for text in [
            include_str!("../../../proto/lockkeeper/v1/sessions.proto"),
            include_str!("../../../proto/lockkeeper/v1/locks.proto"),
            include_str!("../../../proto/lockkeeper/v1/cluster.proto"),
            include_str!("../../../proto/lockkeeper/v1/maintenance.proto"),
        ] {
            let mut service = "";
            for line in text.lines().map(str::trim) {
                if let Some(name) = line.strip_prefix("service ") {
                    service = name.trim_end_matches(" {");
                } else if let Some((name, types)) = line.strip_prefix("rpc ").and_then(|line| line.split_once('(')) {
                    let path = format!("/lockkeeper.v1.{service}/{name}");
                    assert_eq!(request_bytes_max(&path).is_none(), types.starts_with("stream "), "{path}");
                    streams.extend(types.starts_with("stream ").then_some(path));
                }
            }
        }
        assert_eq!(streams.len(), 2, "{streams:?}");
        assert_eq!(request_bytes_max("/grpc.health.v1.Health/Check"), Some(SHORT_BYTES_MAX));
        assert_eq!(request_bytes_max("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"), None);
    }
}
