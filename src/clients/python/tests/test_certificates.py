"""Certificates that are replaced in their files while a client runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from conftest import until

import lockkeeper.testing
from lockkeeper._core import certificate_files, settings, wire
from lockkeeper._core.certificate_files import CertificateFiles
from lockkeeper._core.methods import Method
from lockkeeper._io import Io, Tls
from lockkeeper._io.loop import LoopIo
from lockkeeper._io.threads import ThreadIo, run
from lockkeeper.errors import InvalidArgument


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a cluster with the clients ann and ops."""
    folder = tmp_path_factory.mktemp("made")
    program = os.environ.get("LOCKKEEPER_PROGRAM", "lockkeeper")
    command = [program, "certs", "init", "local", "--nodes", "127.0.0.1", "--clients", "ann,ops"]
    subprocess.run([*command, "--dir", str(folder / "certs")], check=True, capture_output=True)
    return folder / "certs"


class Files:
    """The files of a client."""

    def __init__(self, made: Path, folder: Path) -> None:
        self.made = made
        self.ca, self.cert, self.key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        shutil.copy(made / "ca.pem", self.ca)
        self.become("ann")

    def become(self, client: str, age: float = 60.0) -> None:
        for source, target in ((f"client-{client}.pem", self.cert), (f"client-{client}-key.pem", self.key)):
            shutil.copyfile(self.made / source, target)
            self.age(target, age)
        self.age(self.ca, age)

    @staticmethod
    def age(path: Path, seconds: float) -> None:
        written = time.time() - seconds
        os.utime(path, (written, written))

    def contents(self, client: str) -> Tls:
        names = ("ca.pem", f"client-{client}.pem", f"client-{client}-key.pem")
        return Tls(*((self.made / name).read_bytes() for name in names))

    def settings(self) -> settings.Settings:
        none: dict[str, str] = {"LOCKKEEPER_ENDPOINTS": "127.0.0.1:1"}
        return settings.Settings.read(None, self.ca, self.cert, self.key, None, 10, "test", 10, 2, none)


class Timer:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_certificate_files_are_followed_and_the_last_good_ones_stay(made: Path, tmp_path: Path) -> None:
    files = Files(made, tmp_path)
    timer = Timer()
    paths = tuple(str(path) for path in (files.ca, files.cert, files.key))
    certificates = CertificateFiles(paths, files.contents("ann"), timer)
    first = certificates()
    files.become("ops")
    assert certificates() is first, "they are not looked at with each call"
    timer.now += 2.0
    assert certificates() == files.contents("ops")
    ops = certificates()
    timer.now += 2.0
    assert certificates() is ops, "the same, for as long as they are"

    # Young files may not be whole.
    files.become("ann", age=0.0)
    timer.now += 2.0
    assert certificates() is ops
    timer.now += 0.2
    assert certificates() == files.contents("ann"), "they read the same twice"

    # A key that is not that of the certificate, yet; and files that are none.
    ann = certificates()
    shutil.copyfile(made / "client-ops.pem", files.cert)
    Files.age(files.cert, 60.0)
    timer.now += 2.0
    assert certificates() is ann
    for unusable in (b"", b"no certificate"):
        files.cert.write_bytes(unusable)
        Files.age(files.cert, 60.0)
        timer.now += 2.0
        assert certificates() is ann
    files.cert.unlink()
    timer.now += 2.0
    assert certificates() is ann
    os.mkfifo(files.cert)
    timer.now += 2.0
    assert certificates() is ann, "and nobody waits for a writer"
    files.cert.unlink()
    files.become("ops")
    timer.now += 2.0
    assert certificates() == files.contents("ops")


def test_a_client_follows_the_files_that_its_settings_name(made: Path, tmp_path: Path) -> None:
    files = Files(made, tmp_path)
    given = files.settings()
    assert isinstance(given.certificates, CertificateFiles)
    assert given.tls == files.contents("ann")
    files.cert.unlink()
    with pytest.raises(InvalidArgument, match="cannot read"):
        files.settings()


class Echo(grpc.GenericRpcHandler):
    """Says who calls: at once, or by a stream that stays open."""

    def service(self, handler_call_details: Any) -> Any:
        def name(context: Any) -> bytes:
            caller = context.auth_context()["x509_common_name"][0].decode().removeprefix("client-")
            answer: bytes = wire.GetRequest(name=caller).SerializeToString()
            return answer

        def stream(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            for _ in requests:
                yield name(context)

        if handler_call_details.method == ECHO.path:
            return grpc.unary_unary_rpc_method_handler(lambda _, context: name(context))
        return grpc.stream_stream_rpc_method_handler(stream)


# Any message with a text.
ECHO = Method("/test/Echo", "GetRequest", "GetRequest")
STREAM = Method("/test/Stream", "GetRequest", "GetRequest")


@pytest.fixture
def server(made: Path) -> Iterator[str]:
    """The address of a server that asks for certificates."""
    pool = ThreadPoolExecutor(max_workers=8)
    server = grpc.server(pool)
    server.add_generic_rpc_handlers((Echo(),))
    own = ((made / "node-1-key.pem").read_bytes(), (made / "node-1.pem").read_bytes())
    credentials = grpc.ssl_server_credentials([own], (made / "ca.pem").read_bytes(), require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
    pool.shutdown()


async def check_following(io: Io, address: str, files: Files) -> None:
    """A new call has the new certificate, and a stream that is open goes on, until nobody has it."""

    async def who() -> str:
        reply = await io.call(address, ECHO, wire.GetRequest(), 10.0)
        return str(reply.message.name)

    assert await who() == "ann"
    signal = io.signal()
    stream = io.stream(address, STREAM, signal, lambda _: None)

    async def told() -> str:
        stream.send(wire.GetRequest(name="who"))
        while (message := stream.take()) is None:
            assert stream.failure() is None
            await signal.wait(10.0)
        return str(message.name)

    assert await told() == "ann"
    files.become("ops")
    assert await who() == "ops"
    assert await told() == "ann", "the stream has its connection"
    stream.finish()
    assert await who() == "ops"
    await io.close(1.0)


def test_new_connections_of_threads_have_the_new_certificates(
    made: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_files, "REREAD", 0.0)
    files = Files(made, tmp_path)
    run(check_following(ThreadIo(files.settings().certificates, None), server, files))


def test_new_connections_of_a_loop_have_the_new_certificates(
    made: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_files, "REREAD", 0.0)
    files = Files(made, tmp_path)

    async def check() -> None:
        await check_following(LoopIo(files.settings().certificates, None), server, files)

    asyncio.run(check())


def test_a_client_of_a_cluster_goes_on_by_the_certificate_that_replaces_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds stays, and so does its session."""
    monkeypatch.setattr(certificate_files, "REREAD", 0.0)
    with lockkeeper.testing.cluster(nodes=1, tls=True) as cluster:
        named = {name: Path(cluster.environment[f"LOCKKEEPER_{name.upper()}"]) for name in ("ca", "cert", "key")}
        copies = {name: tmp_path / path.name for name, path in named.items()}
        for name, path in named.items():
            shutil.copy(path, copies[name])
        with cluster.connect(**copies) as client, client.lock("jobs") as lock:
            before = lock.remaining
            # A line more, which changes nothing but the bytes.
            for path in copies.values():
                path.write_bytes(path.read_bytes() + b"\n")
                Files.age(path, 60.0)
            assert client.get("jobs").is_held
            until("it is renewed", lambda: lock.remaining > before - 1.0)
