"""The Vault store against a real OpenBao."""

import asyncio
import http.server
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from coatcheck.stores import Secret, SecretMissing, SecretUnavailable
from coatcheck.stores.cache import CachedStore
from coatcheck.stores.embedded import EmbeddedVault
from coatcheck.stores.vault import VaultConfig, VaultStore
from coatcheck.stores.vault_login import TokenLogin
from tests.bao import running_bao
from tests.known_secrets import known_secret
from tests.stores.conftest import MakeStore, ref
from tests.stores.slow_front import STALLS, SlowFront


async def test_reads_a_field_and_its_version(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """A KV version 2 secret comes with its value and its version; a new version is read as such."""
    await bao.put("versions", {"api_key": known_secret("v1"), "other": "x"})
    store = make_store()
    first = await store.fetch(ref("versions"))
    await bao.put("versions", {"api_key": known_secret("v2")})
    second = await store.fetch(ref("versions"))
    assert (first.reveal(), first.version) == (known_secret("v1"), "1")
    assert (second.reveal(), second.version) == (known_secret("v2"), "2")


async def test_reads_deep_paths_and_other_mounts(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """Path segments and mounts are the reference's, characters that URLs reserve included."""
    await bao.call(lambda c: c.sys.enable_secrets_engine("kv", path="team/kv", options={"version": "2"}))
    await bao.put("a/b c/d#e?f%2e", {"api_key": known_secret("deep")}, mount="team/kv")
    secret = await make_store().fetch(ref("a/b c/d#e?f%2e", mount="team/kv"))
    assert secret.reveal() == known_secret("deep")


async def test_an_object_is_given_as_json(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """A field that holds an object (an AWS key pair) arrives as JSON text."""
    await bao.put("aws", {"keys": {"id": "AKIA", "key": known_secret("aws")}})
    secret = await make_store().fetch(ref("aws", "keys"))
    assert secret.reveal() == f'{{"id": "AKIA", "key": "{known_secret("aws")}"}}'


@pytest.mark.parametrize(
    ("path", "field", "mount", "why"),
    [
        ("nothing-here", "api_key", "secret", "404"),
        ("fields", "absent", "secret", "no field 'absent'"),
        ("fields", "empty", "secret", "empty or not text"),
        ("fields", "number", "secret", "empty or not text"),
        ("fields", "api_key", "no-such-mount", "404"),
        ("deleted", "api_key", "secret", "404"),
        ("../sys/raw", "api_key", "secret", "no path in Vault"),
        ("a//b", "api_key", "secret", "no path in Vault"),
        ("a\nb", "api_key", "secret", "no path in Vault"),
    ],
)
async def test_what_is_not_there_is_missing(
    path: str, field: str, mount: str, why: str, bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """Absent, deleted, empty and impossible references are SecretMissing, and the message says which."""
    await bao.put("fields", {"api_key": known_secret("fields"), "empty": "", "number": 7})
    await bao.put("deleted", {"api_key": known_secret("deleted")})
    await bao.call(lambda c: c.secrets.kv.v2.delete_latest_version_of_secret("deleted"))
    with pytest.raises(SecretMissing, match=why) as caught:
        await make_store().fetch(ref(path, field, mount))
    assert_tells_nothing(caught.value, known_secret("fields"), bao.root_token)


def assert_tells_nothing(failure: BaseException, *secrets: str) -> None:
    """Neither the exception nor anything that hangs on it holds one of the secrets."""
    text = "".join(traceback.format_exception(failure)) + repr(failure) + repr(vars(failure))
    assert not [name for name in secrets if name in text]
    seen = failure.__context__ or failure.__cause__
    assert seen is None or isinstance(seen, SecretUnavailable)


async def test_a_rotated_secret_is_picked_up_within_its_ttl(
    bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """With a ttl of 0.3 s the new value is served 0.3 s later, without a restart."""
    await bao.put("rotated", {"api_key": known_secret("before")})
    cached = CachedStore(make_store(), ttl=0.3, refresh_ahead=0.0)
    assert (await cached.fetch(ref("rotated"))).reveal() == known_secret("before")
    await bao.put("rotated", {"api_key": known_secret("after")})
    await asyncio.sleep(0.3)
    assert (await cached.fetch(ref("rotated"))).reveal() == known_secret("after")
    await cached.close()


async def test_fields_of_one_path_share_one_read(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """Twenty concurrent fetches of two fields ask Vault once: a path has one thread at most."""
    await bao.put("shared", {"a": known_secret("shared-a"), "b": known_secret("shared-b")})
    async with SlowFront.start(bao.url) as front:
        store = make_store(url=front.url)
        got = await asyncio.gather(*(store.fetch(ref("shared", name)) for name in "ab" * 10))
        assert {secret.reveal() for secret in got} == {known_secret("shared-a"), known_secret("shared-b")}
        assert front.asked["shared"] == 1


async def test_200_requests_for_one_secret_proceed_while_three_others_stall(
    bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """B hangs, C drips its head and D its body: A's cold reads are not held up, and each holds one thread."""
    await bao.put("A", {"api_key": known_secret("A")})
    async with SlowFront.start(bao.url, dict(zip("BCD", STALLS, strict=True))) as front:
        store = make_store(url=front.url, timeout_seconds=2.0)
        await store.ready()
        cached = CachedStore(store)
        stalled = [asyncio.ensure_future(cached.fetch(ref(name))) for name in "BCD" * 50]
        while front.stalled.total() < 3:
            await asyncio.sleep(0.01)

        began = time.monotonic()
        got = await asyncio.gather(*(cached.fetch(ref("A")) for _ in range(200)))
        assert {secret.reveal() for secret in got} == {known_secret("A")}
        assert front.asked["A"] == 1
        for _ in range(50):
            cached.invalidate(ref("A"))
            await cached.fetch(ref("A"))
        assert time.monotonic() - began < 2.0
        assert front.asked["A"] == 51

        assert not any(task.done() for task in stalled)
        assert dict(front.stalled) == {"B": 1, "C": 1, "D": 1}
        outcomes = await asyncio.gather(*stalled, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {SecretUnavailable}
        assert time.monotonic() - began < 4.0


async def test_more_stalled_paths_than_threads_leave_room(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """Six paths stall on four threads. Once they have failed they share one, and A has the others."""
    await bao.put("A", {"api_key": known_secret("A")})
    paths = [f"stall-{number}" for number in range(6)]
    async with SlowFront.start(bao.url, dict.fromkeys(paths, "hang")) as front:
        store = make_store(url=front.url, timeout_seconds=0.5, threads=4, breaker_threshold=100)
        await store.ready()
        for _ in range(2):  # three at once have threads; the others are refused for want of one, then fail
            await asyncio.gather(*(store.fetch(ref(path)) for path in paths), return_exceptions=True)
            await asyncio.sleep(0.1)
        again = [asyncio.ensure_future(store.fetch(ref(path))) for path in paths]
        while not front.stalled.total():
            await asyncio.sleep(0.01)
        began = time.monotonic()
        assert (await store.fetch(ref("A"))).reveal() == known_secret("A")
        assert time.monotonic() - began < 0.4
        assert front.stalled.total() == 1
        await asyncio.gather(*again, return_exceptions=True)


@pytest.mark.parametrize("stall", STALLS)
async def test_a_stalled_answer_is_cut_and_its_thread_released(
    stall: str, bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """A byte a moment does not extend the deadline: the connection is closed by us, from its thread."""
    async with SlowFront.start(bao.url, {"B": stall}) as front:
        store = make_store(url=front.url, timeout_seconds=0.7)
        await store.ready()
        began = time.monotonic()
        with pytest.raises(SecretUnavailable, match="within"):
            await store.fetch(ref("B"))
        assert 0.5 < time.monotonic() - began < 1.5
        while front.stalled["B"]:
            await asyncio.sleep(0.02)
            assert time.monotonic() - began < 2.0, "the thread still reads"


async def test_a_path_that_fails_is_not_asked_while_its_breaker_is_open(
    bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """After two time-outs B fails at once, unasked; A is read as before; later B is tried again and heals."""
    for name in "AB":
        await bao.put(name, {"api_key": known_secret(name)})
    async with SlowFront.start(bao.url, {"B": "hang"}) as front:
        store = make_store(url=front.url, timeout_seconds=0.3, breaker_threshold=2, breaker_seconds=0.5)
        await store.ready()
        for _ in range(2):
            with pytest.raises(SecretUnavailable):
                await store.fetch(ref("B"))
            await asyncio.sleep(0.05)
        began = time.monotonic()
        with pytest.raises(SecretUnavailable, match="several times in a row"):
            await store.fetch(ref("B"))
        assert time.monotonic() - began < 0.2
        assert front.asked["B"] == 2
        assert (await store.fetch(ref("A"))).reveal() == known_secret("A")
        front.stalls.clear()
        await asyncio.sleep(0.5)
        assert (await store.fetch(ref("B"))).reveal() == known_secret("B")


async def test_a_cancelled_waiter_leaves_the_read_to_the_others(
    bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """One client that goes away does not take the secret from the next."""
    await bao.put("kept", {"api_key": known_secret("kept")})
    store = make_store()
    leaves, stays = (asyncio.ensure_future(store.fetch(ref("kept"))) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    assert (await stays).reveal() == known_secret("kept")
    assert leaves.cancelled()


async def test_a_killed_vault_is_survived_for_a_bounded_time(output_dir: Path) -> None:
    """The old value serves until max_stale is over, then requests are refused, and fast."""
    with RunningBaoElsewhere(output_dir / "openbao.log") as (vault, kill):
        await vault.put("stale", {"api_key": known_secret("stale")})
        store = VaultStore(VaultConfig(vault.url, TokenLogin(token=vault.root_token), timeout_seconds=1.0))
        cached = CachedStore(store, ttl=0.1, max_stale=1.0, negative_ttl=0.1, refresh_ahead=0.0)
        first = await cached.fetch(ref("stale"))
        kill()
        began = time.monotonic()
        await asyncio.sleep(0.15)
        assert (await cached.fetch(ref("stale"))).reveal() == first.reveal()
        await asyncio.sleep(1.1 - (time.monotonic() - began))
        with pytest.raises(SecretUnavailable) as caught:
            await cached.fetch(ref("stale"))
        assert not isinstance(caught.value, SecretMissing)
        assert time.monotonic() - began < 2.0
        assert_tells_nothing(caught.value, known_secret("stale"), vault.root_token)
        await cached.close()


async def test_a_sealed_vault_is_unavailable(output_dir: Path) -> None:
    """Sealed means "cannot say", not "missing": the old value may serve."""
    with RunningBaoElsewhere(output_dir / "openbao.log") as (vault, _):
        await vault.put("sealed", {"api_key": known_secret("sealed")})
        store = VaultStore(VaultConfig(vault.url, TokenLogin(token=vault.root_token)))
        await store.fetch(ref("sealed"))
        await vault.call(lambda client: client.sys.seal())
        with pytest.raises(SecretUnavailable, match="sealed") as caught:
            await store.fetch(ref("sealed"))
        assert not isinstance(caught.value, SecretMissing)
        await store.close()


class RunningBaoElsewhere:
    """An OpenBao of the test's own, run by another thread's loop: the test kills or seals it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._stop = threading.Event()

    def __enter__(self) -> tuple[EmbeddedVault, Callable[[], None]]:
        started: list[EmbeddedVault] = []
        ready = threading.Event()

        def run() -> None:
            with running_bao(self._log) as vault:
                started.append(vault)
                ready.set()
                self._stop.wait()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert ready.wait(60)
        return started[0], started[0].process.kill

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


async def test_nothing_is_taken_from_the_environment(
    bao: EmbeddedVault, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Proxies, .netrc, VAULT_ and CA variables, a token file in the home: none of them counts."""
    dead = "http://127.0.0.1:9"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, dead)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("VAULT_ADDR", "BAO_ADDR"):
        monkeypatch.setenv(name, dead)
    for name in ("VAULT_TOKEN", "VAULT_NAMESPACE", "VAULT_CACERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".vault-token").write_text("wrong")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login x password y\n")
    await bao.put("env", {"api_key": known_secret("env")})
    assert (await make_store().fetch(ref("env"))).reveal() == known_secret("env")
    with pytest.raises(SecretUnavailable, match="no Vault token is configured"):
        await make_store(login=TokenLogin()).fetch(ref("env"))


async def test_a_dead_address_is_unavailable_and_the_message_is_clean(
    bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """Refused connections are SecretUnavailable, with nothing of the request in the exception."""
    with pytest.raises(SecretUnavailable, match="cannot be reached") as caught:
        await make_store(url="http://127.0.0.1:9").fetch(ref("x"))
    assert_tells_nothing(caught.value, bao.root_token)


@pytest.mark.parametrize(
    "url",
    [
        "http://vault.example:8200",
        "vault.example",
        "https://user:pw@vault.example",
        "https://:pw@vault.example",
        "ftp://vault.example",
        "https://vault.example?x=1",
    ],
)
def test_an_unsafe_url_is_refused(url: str) -> None:
    """Plain http beyond loopback, user names and other schemes are errors at start."""
    with pytest.raises(ValueError, match="Vault URL"):
        VaultConfig(url, TokenLogin(token="t"))


def test_a_login_value_does_not_print() -> None:
    """The configuration's repr shows no token."""
    assert "hvs.secret" not in repr(VaultConfig("https://vault.example", TokenLogin(token="hvs.secret")))


class Impostor(http.server.BaseHTTPRequestHandler):
    """Answers as told by `answers`: path's end -> status, headers, body."""

    answers: dict[str, tuple[int, dict[str, str], bytes]] = {}  # noqa: RUF012
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        default: tuple[int, dict[str, str], bytes] = (200, {}, b'{"data": {"ttl": 0, "renewable": false}}')
        status, headers, body = self.answers.get(self.path.rpartition("/")[2], default)
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[tuple[str, Path, type[Impostor]]]:
    """A TLS server for `localhost` with answers of the test's choice; its URL and CA file."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)
    handler = type("Handler", (Impostor,), {"answers": {}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that leave are wanted
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"https://localhost:{server.server_port}", tmp_path / "ca.pem", handler
    server.shutdown()
    thread.join()
    server.server_close()


GOOD = b'{"data": {"data": {"api_key": "sk-over-tls"}, "metadata": {"version": 3}}}'


async def test_tls_is_verified_against_the_configured_ca_and_name(
    impostor: tuple[str, Path, type[Impostor]], make_store: MakeStore
) -> None:
    """The CA file and the right name: read. Public roots, or another name: unavailable."""
    url, ca, handler = impostor
    handler.answers["good"] = (200, {}, GOOD)
    login = TokenLogin(token="t")
    secret = await make_store(url=url, ca_file=ca, login=login).fetch(ref("good"))
    assert secret.reveal() == "sk-over-tls"
    with pytest.raises(SecretUnavailable, match="by TLS"):
        await make_store(url=url, login=login).fetch(ref("good"))
    other = url.replace("localhost", "127.0.0.1")
    with pytest.raises(SecretUnavailable, match="by TLS"):
        await make_store(url=other, ca_file=ca, login=login).fetch(ref("good"))


@pytest.mark.parametrize(
    ("status", "headers", "body", "why"),
    [
        (
            307,
            {"Location": "https://elsewhere.example/v1/secret/data/bad"},
            b"",
            "redirects are not followed",
        ),
        (200, {}, b'{"data": "' + b"x" * 2_000_000 + b'"}', "larger than"),
        (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b", "failed"),
        (200, {}, b"not json sk-secret", "status 200"),
        (200, {}, b"[" * 100_000, "unreadable|status 200"),
        (200, {}, b'{"data": ["sk-secret"]}', "documented form"),
        (200, {}, b'{"data": {"data": {"api_key": ["sk-secret"]}, "metadata": {}}}', "not text"),
        (500, {}, b'{"errors": ["sk-secret"]}', "server failed"),
        (418, {}, b'{"errors": {"sk-secret": 1}}', "failed|unreadable"),
        (429, {}, b'{"errors": ["sk-secret"]}', "429"),
        (403, {}, b'{"errors": ["sk-secret"]}', "permission denied"),
        (200, {"X-Big": "y" * 70_000}, GOOD, "failed"),
    ],
)
async def test_a_hostile_answer_is_unavailable_and_not_quoted(
    status: int,
    headers: dict[str, str],
    body: bytes,
    why: str,
    impostor: tuple[str, Path, type[Impostor]],
    make_store: MakeStore,
) -> None:
    """Redirects, floods, bombs, nonsense and errors end as SecretUnavailable without a word of the body."""
    url, ca, handler = impostor
    token = known_secret("a token for an impostor")
    handler.answers["bad"] = (status, headers, body)
    with pytest.raises(SecretUnavailable, match=why) as caught:
        await make_store(url=url, ca_file=ca, login=TokenLogin(token=token)).fetch(ref("bad"))
    assert_tells_nothing(caught.value, "sk-secret", token, "elsewhere")


async def test_a_namespace_is_sent(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """A secret inside an OpenBao namespace is read with the setting, and missing without it."""
    await bao.call(lambda client: client.adapter.post("/v1/sys/namespaces/team-ns"))

    def fill(client: object) -> None:
        client.adapter.namespace = "team-ns"  # type: ignore[attr-defined]
        client.sys.enable_secrets_engine("kv", path="inside", options={"version": "2"})  # type: ignore[attr-defined]
        client.secrets.kv.v2.create_or_update_secret(  # type: ignore[attr-defined]
            "n", {"api_key": known_secret("namespace")}, mount_point="inside"
        )

    await bao.call(fill)
    there = make_store(namespace="team-ns")
    assert (await there.fetch(ref("n", mount="inside"))).reveal() == known_secret("namespace")
    with pytest.raises(SecretMissing):
        await make_store().fetch(ref("n", mount="inside"))


async def test_too_many_reads_at_once_are_refused(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """The queue of reads has a bound: one more path is refused at once."""
    async with SlowFront.start(bao.url, {"B": "hang"}) as front:
        store = make_store(url=front.url, timeout_seconds=0.5, max_reads=1)
        await store.ready()
        stalled = asyncio.ensure_future(store.fetch(ref("B")))
        await asyncio.sleep(0)
        with pytest.raises(SecretUnavailable, match="already under way"):
            await store.fetch(ref("C"))
        with pytest.raises(SecretUnavailable):
            await stalled


async def test_a_closed_store_refuses(bao: EmbeddedVault, make_store: MakeStore) -> None:
    """After close nothing is read, and those who wait are told."""
    async with SlowFront.start(bao.url, {"B": "hang"}) as front:
        store = make_store(url=front.url, timeout_seconds=0.5)
        await store.ready()
        waiting = asyncio.ensure_future(store.fetch(ref("B")))
        await asyncio.sleep(0.05)
        await store.close()
        with pytest.raises(SecretUnavailable):
            await waiting
        with pytest.raises(SecretUnavailable, match="closed"):
            await store.fetch(ref("B"))


def test_a_secret_does_not_print() -> None:
    """repr, str, format and pickling of a Secret give its name at most."""
    secret = Secret(ref("p"), "sk-visible")
    assert "sk-visible" not in f"{secret!r}{secret!s}{secret:>40}"
