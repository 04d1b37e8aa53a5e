"""What needs no cluster: the lease, request ids, nodes, retries' judgements, arguments, settings."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import lockkeeper
from lockkeeper._core import failures, settings, wire
from lockkeeper._core.acquiring import Wanted
from lockkeeper._core.backoff import Backoff
from lockkeeper._core.calls import RetryPolicy
from lockkeeper._core.lease import Lease, deadline_after
from lockkeeper._core.nodes import Nodes
from lockkeeper._core.requests import LAG_MAX, Requests
from lockkeeper._core.token_file import TokenFile
from lockkeeper.errors import Loss, LossReason


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def leased(ttl: float = 10.0) -> tuple[Hand, Lease]:
    clock = Hand()
    return clock, Lease(0.0, ttl, clock)


def test_the_margin_is_a_percent_and_at_least_ten_milliseconds() -> None:
    assert deadline_after(5.0, 0.1) == pytest.approx(5.09)
    assert deadline_after(0.0, 1.0) == pytest.approx(0.99)
    assert deadline_after(0.0, 60.0) == pytest.approx(59.4)


def test_the_deadline_counts_from_the_sending_and_a_look_finds_it_passed() -> None:
    clock, lease = leased()
    clock.now = 4.0
    lease.renewed(3.0, 10.0)
    assert lease.remaining() == pytest.approx(8.9)
    lease.renewed(2.0, 10.0)
    assert lease.remaining() == pytest.approx(8.9), "an answer that was overtaken takes nothing away"
    clock.now = 12.9
    assert lease.remaining() == 0.0
    assert lease.loss() == Loss(LossReason.OUT_OF_CONTACT)
    lease.renewed(12.0, 10.0)
    assert lease.loss() == Loss(LossReason.OUT_OF_CONTACT), "no later answer revives it"
    assert lease.remaining() == 0.0


def test_a_session_without_time_left_is_lost_for_good() -> None:
    clock, lease = leased()
    clock.now = 9.9
    assert lease.remaining() == 0.0
    lease.renewed(9.0, 10.0)
    assert lease.remaining() == 0.0, "who stopped at zero is not told otherwise"
    assert lease.loss() == Loss(LossReason.OUT_OF_CONTACT)


def test_whoever_listens_is_told_once_of_the_first_loss() -> None:
    _, lease = leased()
    told: list[object] = []
    with lease.listening(lambda: told.append(lease.loss())):
        assert lease.end(Loss(LossReason.EXPIRED))
        assert not lease.end(Loss(LossReason.CLOSED))
    lease.revoked(7, "stuck", 0)
    assert told == [Loss(LossReason.EXPIRED)]


def test_a_look_in_a_fork_waits_for_nobody_and_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lease = leased()
    told: list[str] = []
    lease.listen(lambda: told.append("told"))
    clock.now = 20.0
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    # The thread that held it was not forked along: a look that waits for it waits for ever.
    lease._mutex.acquire()
    looks: list[object] = []

    def look() -> None:
        looks.extend([lease.remaining(), lease.remaining(7), lease.loss()])

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    looker.join(10)
    assert looks == [0.0, 0.0, Loss(LossReason.FORKED)]
    assert (told, lease.is_ended) == ([], False)


def test_renewals_do_not_extend_a_revoked_grant_but_the_others() -> None:
    _, lease = leased()
    lease.revoked(7, "stuck", 5.0)
    lease.revoked(7, "still stuck", 60.0)
    lease.renewed(3.0, 10.0)
    assert lease.remaining(7) == pytest.approx(5.0)
    assert lease.remaining(8) == pytest.approx(12.9)
    assert lease.loss(7) == Loss(LossReason.REVOKED, "stuck")
    assert lease.loss(8) is None
    lease.revoked(9, "stuck", 60.0)
    assert lease.remaining(9) == pytest.approx(12.9), "never past the deadline that it had"


def test_a_revocation_in_an_answer_counts_from_its_sending() -> None:
    clock, lease = leased()
    clock.now = 4.0
    lease.revoked(8, "stuck", 1.5, counted_from=3.0)
    assert lease.remaining(8) == pytest.approx(0.5)


def test_what_is_over_by_force_is_acknowledged_once_and_not_what_was_released() -> None:
    _, lease = leased()
    for token, left in ((7, 5.0), (8, 0.0), (9, 0.0), (8, 0.0)):
        lease.revoked(token, "stuck", left)
    lease.forget(9)
    assert [lease.next_to_acknowledge(), lease.next_to_acknowledge()] == [8, None]
    lease.revoked(7, "stuck", 0.0)
    assert lease.next_to_acknowledge() == 7


def message(requests: Requests, request_id: int) -> tuple[int, int, list[int]]:
    said = requests.message(request_id)
    return said.id, said.lowest, list(said.kept)


def test_ids_rise_and_each_message_names_the_outstanding_ones() -> None:
    requests = Requests()
    first, second = requests.begin(), requests.begin()
    assert message(requests, second) == (2, 1, [])
    requests.end(first)
    requests.end(first)
    assert message(requests, second) == (2, 2, [])
    requests.end(second)
    assert message(requests, requests.begin()) == (3, 3, [])


def test_an_id_that_lags_far_behind_is_listed_and_the_lowest_goes_on() -> None:
    requests = Requests()
    first, second = requests.begin(), requests.begin()
    for _ in range(LAG_MAX - 1):
        requests.end(requests.begin())
    assert message(requests, second) == (2, 1, []), "64 are not far"
    newest = requests.begin()
    assert message(requests, newest) == (66, 2, [1])
    requests.end(newest)
    requests.end(requests.begin())
    assert message(requests, second) == (2, 68, [1, 2])
    requests.end(first)
    assert message(requests, requests.begin()) == (68, 68, [2])


def test_no_outstanding_id_is_left_out() -> None:
    requests = Requests()
    every = [requests.begin() for _ in range(1200)]
    said = requests.message(every[-1])
    assert len(said.kept) == 1024
    assert all(one >= said.lowest or one in said.kept for one in every)


def test_the_leader_is_asked_until_it_is_passed_over_then_all_in_turn() -> None:
    nodes = Nodes(" a:1, http://b:2/,a:1,", is_secure=False)
    assert nodes.configured == ("a:1", "b:2")
    nodes.note_leader("c:3")
    assert nodes.preferred() == "c:3"
    assert nodes.is_led_by_other_than("a:1")
    nodes.pass_over("c:3")
    nodes.note_leader("nonsense")
    nodes.note_leader(None)
    nodes.note_members(["http://d:4", "b:2", "nonsense"])
    assert nodes.count() == 3
    asked = set()
    for _ in range(3):
        node = nodes.preferred()
        asked.add(node)
        nodes.pass_over(node)
    assert asked == {"a:1", "b:2", "d:4"}


@pytest.mark.parametrize("endpoints", ["", " , ", "a", "a:port", ":1", "a:1,ftp://b:2", "a:65536", "a:1,https://b:2"])
def test_what_is_no_endpoint_is_named(endpoints: str) -> None:
    with pytest.raises(lockkeeper.InvalidArgument, match=r"endpoint"):
        Nodes(endpoints, is_secure=False)


def details(reason: str, **metadata: str) -> bytes:
    info = wire.ErrorInfo(reason=reason, domain="lockkeeper.v1", metadata=metadata)
    detail = wire.Detail(type_url=failures.ERROR_INFO, value=info.SerializeToString())
    encoded: bytes = wire.Status(details=[detail]).SerializeToString()
    return encoded


def judged(code: str, given: bytes = b"", never_sent: bool = False) -> Any:
    return failures.judge(failures.RpcFailure(code, "because", given, never_sent=never_sent))


def test_what_the_cluster_calls_safe_did_not_happen_and_same_id_may_have() -> None:
    safe = judged("UNAVAILABLE", details("NO_LEADER", retry="safe"))
    assert (safe.unknown, safe.node_answers) == (False, True)
    assert judged("DEADLINE_EXCEEDED", details("OUTCOME_UNKNOWN", retry="same-id")).unknown
    assert judged("UNAVAILABLE").unknown
    assert not judged("UNAVAILABLE", never_sent=True).unknown


def test_a_refusal_keeps_its_reason_also_one_from_the_future() -> None:
    refused = judged("FAILED_PRECONDITION", details("MOON_PHASE", retry="no", lock="jobs"))
    assert (refused.reason, refused.details, str(refused)) == ("MOON_PHASE", {"lock": "jobs"}, "because")
    assert isinstance(judged("RESOURCE_EXHAUSTED", details("DISK_SPACE_LOW", retry="safe")), failures.NotNow)
    revoked = judged("FAILED_PRECONDITION", details("REVOKED", retry="no", revoked_reason="stuck"))
    assert revoked.loss == Loss(LossReason.REVOKED, "stuck")
    assert isinstance(judged("PERMISSION_DENIED", b"\xff\xff not ours"), lockkeeper.Refused)


def test_pauses_double_up_to_a_second() -> None:
    backoff = Backoff()
    for span in (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0):
        assert span / 2 <= backoff.next() <= span


def wanted(*names: str, **options: Any) -> Wanted:
    usual: dict[str, Any] = dict(
        wait=None, data=None, keep_data=False, shared=False, permits=None, must_exist=False, lock_delay=0
    )
    return Wanted.checked(names, **{**usual, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"wait": -1},
        {"wait": float("nan")},
        {"wait": float("inf")},
        {"wait": 604_801},
        {"data": b"x" * 16_385},
        {"data": "text"},
        {"permits": 0},
        {"permits": 1_000_001},
        {"permits": 1, "shared": True},
        {"lock_delay": 3601},
    ],
)
def test_an_option_out_of_range_is_an_error_before_anything_is_sent(options: dict[str, Any]) -> None:
    with pytest.raises(lockkeeper.InvalidArgument):
        wanted("a", **options)


@pytest.mark.parametrize(
    "names", [(), ("",), ("a\0",), ("ä" * 257,), ("\ud800",), ("a", "a"), tuple(map(str, range(65))), (7,)]
)
def test_a_name_out_of_range_is_an_error_before_anything_is_sent(names: tuple[Any, ...]) -> None:
    with pytest.raises(lockkeeper.InvalidArgument):
        wanted(*names)


def test_no_wait_a_limited_one_and_one_for_ever_are_three_things() -> None:
    usual = RetryPolicy(10.0, 2.0)
    assert wanted("a", wait=0).policy(usual) == usual
    assert wanted("a", wait=0.5).policy(usual) == RetryPolicy(10.5, None)
    assert wanted("a").policy(usual) == RetryPolicy(None, None)
    said = [wanted("a", wait=wait).message("s", None, 0.2).WhichOneof("wait") for wait in (0, 0.5, None)]
    assert said == [None, "wait_ms", "wait_forever"]
    assert wanted("a", wait=0.5).message("s", None, 0.2).wait_ms == 300
    assert wanted("a", wait=0.0001).message("s", None, 0.0).wait_ms == 1, "rounded up: 0 would not wait"
    assert wanted("a", wait=0.5).message("s", None, 9.0).wait_ms == 1


def read(environment: dict[str, str], **arguments: Any) -> settings.Settings:
    usual: dict[str, Any] = dict(
        endpoints=None, ca=None, cert=None, key=None, token=None, ttl=10, label=None, call_limit=10, attempt_limit=2
    )
    return settings.Settings.read(**{**usual, **arguments}, environment=environment)


def profile(folder: Path, text: str) -> dict[str, str]:
    file = folder / "profile.toml"
    file.write_text(text)
    return {"LOCKKEEPER_PROFILE": str(file)}


def test_arguments_come_before_the_environment_and_that_before_the_profile(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" secret\n")
    given = profile(tmp_path, "# a profile\nendpoints = \"p:1\"   # nodes\nbearer_token_file = 'token'\n")
    assert read(given).endpoints == "p:1"
    assert read(given).token == "secret"
    assert read({**given, "LOCKKEEPER_ENDPOINTS": "e:1"}).endpoints == "e:1"
    assert read({**given, "LOCKKEEPER_ENDPOINTS": "e:1"}, endpoints="a:1").endpoints == "a:1"
    assert read({**given, "LOCKKEEPER_BEARER_TOKEN": "env"}).token == "env"
    assert read({**given, "LOCKKEEPER_BEARER_TOKEN": "env"}, token="argument").token == "argument"
    assert read({}).endpoints == settings.DEFAULT_ENDPOINTS
    assert "secret" not in repr(read(given))


class Times:
    """The two clocks of a token file."""

    def __init__(self) -> None:
        self.timer = 100.0
        self.wall = time.time()

    def now(self) -> float:
        return self.timer

    def wall_now(self) -> float:
        return self.wall

    def pass_by(self, seconds: float) -> None:
        self.timer += seconds
        self.wall += seconds


def test_a_token_file_is_followed_and_its_last_good_token_stays(tmp_path: Path) -> None:
    path = tmp_path / "token"
    times = Times()

    def write(token: str) -> None:
        path.write_text(token)
        os.utime(path, (times.wall, times.wall))

    write("first\n")
    token = TokenFile(path, "first", times.now, times.wall_now)
    write("later\n")
    times.pass_by(0.5)
    assert token() == "first", "it is not looked at with each call"
    times.pass_by(0.5)
    assert token() == "later"

    # Young files may not be whole.
    times.pass_by(1.0)
    write("thi")
    assert token() == "later"
    write("third")
    times.pass_by(0.2)
    write("third")
    assert token() == "later", "it has changed again"
    times.pass_by(0.2)
    write("third")
    assert token() == "third", "it reads the same twice"

    for unusable in ("", " \n", "two words"):
        write(unusable)
        times.pass_by(2.0)
        assert token() == "third"
    path.unlink()
    times.pass_by(2.0)
    assert token() == "third"
    os.mkfifo(path)
    times.pass_by(2.0)
    assert token() == "third", "and nobody waits for a writer"
    path.unlink()
    write("fourth")
    times.pass_by(2.0)
    assert token() == "fourth"


def test_a_client_follows_the_token_file_that_its_settings_name(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    given = read({"LOCKKEEPER_BEARER_TOKEN_FILE": str(tmp_path / "token")})
    assert isinstance(given.bearer, TokenFile)
    assert given.token == "first"
    assert not isinstance(read({"LOCKKEEPER_BEARER_TOKEN": "env"}).bearer, TokenFile)


def test_files_of_a_profile_are_beside_it_and_what_belongs_together_comes_from_one_place(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key", "other-cert", "other-key"):
        (tmp_path / name).write_text(name)
    given = profile(tmp_path, 'ca = "ca"\ncert = "cert"\nkey = "key"\n')
    tls = read(given).tls
    assert tls is not None
    assert (tls.ca, tls.cert, tls.key) == (b"ca", b"cert", b"key")
    other = {"LOCKKEEPER_CERT": str(tmp_path / "other-cert")}
    with pytest.raises(lockkeeper.InvalidArgument, match="needs its key"):
        read({**given, **other})
    tls = read({**given, **other, "LOCKKEEPER_KEY": str(tmp_path / "other-key")}).tls
    assert tls is not None
    assert (tls.ca, tls.cert) == (b"ca", b"other-cert")
    with pytest.raises(lockkeeper.InvalidArgument, match="cert needs ca"):
        read({**other, "LOCKKEEPER_KEY": str(tmp_path / "other-key")})


@pytest.mark.parametrize("text", ["endpoint = 'p:1'", "endpoints = 1", "endpoints = ", "nonsense"])
def test_a_profile_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(lockkeeper.InvalidArgument, match=r"profile.toml cannot be used"):
        read(profile(tmp_path, text))


def test_the_profile_of_the_user_is_found_and_may_be_missing(tmp_path: Path) -> None:
    assert read({"HOME": str(tmp_path)}).endpoints == settings.DEFAULT_ENDPOINTS
    folder = tmp_path / ".config/lockkeeper"
    folder.mkdir(parents=True)
    (folder / "profile.toml").write_text("endpoints = 'p:1'")
    assert read({"HOME": str(tmp_path)}).endpoints == "p:1"
    with pytest.raises(lockkeeper.InvalidArgument, match="does not exist"):
        read({"LOCKKEEPER_PROFILE": str(tmp_path / "missing.toml")})


def test_the_parser_for_python_3_10_reads_the_same_as_tomllib() -> None:
    text = "# who\nendpoints = \"a:1,b:2\" # where\n\nca='ca.pem'\n"
    assert settings._parse_lines(text) == settings._parse_profile(text) == {"endpoints": "a:1,b:2", "ca": "ca.pem"}
    for wrong in ('ca = "a\\n"', "ca = x", "ca = 'a'\nca = 'b'", "[table]"):
        with pytest.raises(ValueError, match="line"):
            settings._parse_lines(wrong)


@pytest.mark.parametrize("token", ["", "se cret", "ä"])
def test_a_token_that_no_header_can_carry_is_an_error_that_does_not_show_it(token: str) -> None:
    with pytest.raises(lockkeeper.InvalidArgument) as error:
        read({}, token=token)
    assert token == "" or token not in str(error.value)


def test_the_label_names_the_process_and_fits() -> None:
    assert len(settings.default_label().encode()) <= 256
    with pytest.raises(lockkeeper.InvalidArgument):
        read({}, label="x" * 257)


def test_errors_say_what_happened_and_survive_another_process() -> None:
    busy = lockkeeper.NotAcquired("jobs", None, 2, 0.0075, waited=True)
    assert (
        str(busy)
        == "lock 'jobs' was not acquired in time: closed for another 0.007 s by its lock-delay, 2 in the queue"
    )
    assert str(lockkeeper.NotAcquired("jobs")) == "lock 'jobs' was not acquired: others wait for it"
    lost = lockkeeper.Lost(Loss(LossReason.REVOKED, "stuck"))
    for error in (
        busy,
        lost,
        lockkeeper.NoCluster("why"),
        lockkeeper.Refused("R", "m", {"a": "b"}),
        lockkeeper.NotEnsured(1, 2),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))


def test_an_import_does_no_work() -> None:
    script = """
import json, sys, threading
import lockkeeper, lockkeeper.aio, lockkeeper.testing
print(json.dumps([threading.active_count(), [m for m in ("grpc", "google.protobuf", "pytest", "sqlalchemy") if m in sys.modules]]))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
    assert json.loads(said) == [1, []]


def test_every_message_of_the_calls_is_described() -> None:
    from lockkeeper._core import methods

    for method in vars(methods).values():
        if isinstance(method, methods.Method):
            assert callable(method.parse)
            getattr(wire, method.request)()
    with pytest.raises(AttributeError):
        _ = wire.NoSuchMessage


def test_the_pools_messages_do_not_clash_with_generated_ones() -> None:
    from google.protobuf import descriptor_pool

    wire.AcquireRequest()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("lockkeeper.v1.AcquireRequest")
