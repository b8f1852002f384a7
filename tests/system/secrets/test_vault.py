"""The Vault store against a real OpenBao."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coatcheck.secrets import Secret, SecretMissing, SecretUnavailable
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.vault import VaultConfig, VaultStore
from coatcheck.secrets.vault_login import TokenLogin
from tests.bao import running_bao
from tests.known_secrets import known_secret
from tests.secrets.refs import assert_tells_nothing, ref
from tests.system.secrets.conftest import MakeStore


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
        ("../sys/raw", "api_key", "secret", "not a path in Vault"),
        ("a//b", "api_key", "secret", "not a path in Vault"),
        ("a\nb", "api_key", "secret", "not a path in Vault"),
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


async def test_what_kv_still_has_of_a_secret_is_read_with_the_right_to_read_it(
    bao: EmbeddedVault, make_store: MakeStore
) -> None:
    """Its versions, newest first, without those that were deleted or destroyed, or that KV has dropped."""
    values = [known_secret(f"version {number}") for number in range(1, 15)]
    for number, value in enumerate(values, 1):
        await bao.put("of-many-versions", {"api_key" if number != 12 else "other": value})
    await bao.call(lambda c: c.secrets.kv.v2.delete_secret_versions("of-many-versions", [9]))
    await bao.call(lambda c: c.secrets.kv.v2.destroy_secret_versions("of-many-versions", [10]))
    store = make_store()
    found = await store.history(ref("of-many-versions"), ())
    assert [(each.version, each.reveal()) for each in found] == [
        (str(number), values[number - 1]) for number in (14, 13, 11, 8, 7, 6, 5)
    ]
    assert [each.version for each in await store.history(ref("of-many-versions"), {"11"})] == ["14", "13"]
    await bao.call(lambda c: c.secrets.kv.v2.delete_latest_version_of_secret("of-many-versions"))
    assert [each.version for each in await store.history(ref("of-many-versions"), {"11"})] == ["13"]
    assert await store.history(ref("nothing-here"), ()) == ()


async def test_a_history_that_cannot_be_read_is_not_an_empty_one(bao: EmbeddedVault, tmp_path: Path) -> None:
    """Anyone who takes it for one would not look for what was served."""
    login = TokenLogin(token="s.not-a-token-of-this-server")
    store = VaultStore(VaultConfig(url=bao.url, login=login, timeout_seconds=2))
    with pytest.raises(SecretUnavailable) as caught:
        await store.history(ref("versions"), ())
    assert not isinstance(caught.value, SecretMissing)
    await store.close()


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
        cached = CachedStore(store, ttl=0.1, max_stale=3.0, negative_ttl=0.1, refresh_ahead=0.0)
        first = await cached.fetch(ref("stale"))
        kill()
        began = time.monotonic()
        await asyncio.sleep(0.15)
        assert (await cached.fetch(ref("stale"))).reveal() == first.reveal()
        await asyncio.sleep(3.1 - (time.monotonic() - began))
        with pytest.raises(SecretUnavailable) as caught:
            await cached.fetch(ref("stale"))
        assert not isinstance(caught.value, SecretMissing)
        assert time.monotonic() - began < 20.0
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


def test_a_secret_does_not_print() -> None:
    """repr, str, format and pickling of a Secret give its name at most."""
    secret = Secret(ref("p"), "sk-visible")
    assert "sk-visible" not in f"{secret!r}{secret!s}{secret:>40}"
