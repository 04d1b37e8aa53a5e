"""The settings of gRPC's channels, the same for both clients."""

from typing import Final

OPTIONS: Final = (
    # A waiting call can be idle for long. Pings find a dead connection early enough to repeat the wait before the cluster gives up its
    # place.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A node that is back is found soon. The first of these also bounds the time to connect.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The client repeats by itself, under request ids.
    ("grpc.enable_retries", 0),
    # A node is a peer in the same network: a proxy that the environment names for the web would be a surprise.
    ("grpc.enable_http_proxy", 0),
    # Not shared with other users of gRPC in this process, nor with another client.
    ("grpc.use_local_subchannel_pool", 1),
)

NEVER_SENT: Final = "failed to connect to all addresses"
"""How gRPC's core begins to say that it has no connection: nothing was sent then."""

LEADER: Final = "lockkeeper-leader"
DETAILS: Final = "grpc-status-details-bin"
