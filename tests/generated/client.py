"""Opens a session by the generated code, closes it under the present name and the former one, and sees that it is over.

python client.py HOST:PORT, with the generated modules in PYTHONPATH
"""

import sys

import grpc
from lockkeeper.v1 import sessions_pb2, sessions_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    sessions = sessions_pb2_grpc.SessionsStub(channel)
    former = channel.unary_unary(
        "/lockkeeper.v1.Sessions/Close",
        request_serializer=sessions_pb2.CloseSessionRequest.SerializeToString,
        response_deserializer=sessions_pb2.CloseSessionResponse.FromString,
    )
    for close in (sessions.CloseSession, former):
        opened = sessions.Open(sessions_pb2.OpenSessionRequest(ttl_ms=10_000, label="python"), timeout=10)
        close(sessions_pb2.CloseSessionRequest(session_id=opened.session_id), timeout=10)
        try:
            sessions.Renew(sessions_pb2.RenewSessionRequest(session_id=opened.session_id), timeout=10)
            raise SystemExit("the session is not closed")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND, error
print("closed")
