"""What is in force, and what is told of what is not."""

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.decision.injection import Injector
from coatcheck.platform.state_directory import StateDirectory
from coatcheck.policy.file.problem import PolicyError
from coatcheck.policy.in_force import PoliciesInForce
from coatcheck.policy.watch import PolicyWatch
from coatcheck.settings.daemon import Settings
from coatcheck.state.state import State
from coatcheck.telemetry.events import DaemonEvent, Event, PolicyEvent
from coatcheck.telemetry.metrics.metrics import Metrics
from tests.policy.bundle.bundles import YAML, pem, put, signed

KEY = Ed25519PrivateKey.generate()
WITH_A_CREDENTIAL = b"""version: 1
owner: tests
credentials:
  example:
    secret: vault:secret/example#token
    hosts: [api.example.com]
    inject: {header: authorization}
rules:
  - name: example
    hosts: [api.example.com]
    methods: [GET]
    credentials: [example]
"""


class Deployment:
    """A state directory, a place for policies, and what was told."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.told: list[Event] = []
        self.metrics = Metrics()
        self.directory = StateDirectory.open(place / "state")
        self.state = State.open(self.directory.sessions, emit=self.told.append)

    def policies(self, name: str, trust_root: str | None = None) -> PoliciesInForce:
        settings = Settings(
            policy=self.place / name, policy_trust_root=self.place / trust_root if trust_root else None
        )
        return PoliciesInForce(settings, self.directory, self.state, self.metrics, self.told.append)

    def scraped(self, name: str) -> list[str]:
        lines = self.metrics.render().decode().splitlines()
        return [line.split(" ")[-1] for line in lines if line.startswith(f"coatcheck_{name} ")]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    made.state.close()


async def test_a_refused_file_leaves_what_was_in_force_and_is_told_once(deployment: Deployment) -> None:
    """In an event, in a gauge that falls again when it is mended, and in words for callers."""
    file = put(deployment.place / "default.yaml", YAML)
    policies = deployment.policies("default.yaml")
    policies.load()
    before = deployment.state.policies
    put(file, b"rules: none\n")
    assert not await policies.reload() and not await policies.reload()
    assert deployment.state.policies is before
    refused = [each for each in deployment.told if isinstance(each, PolicyEvent) and not each.loaded]
    assert len(refused) == 1 and policies.last_refused == refused[0].detail
    assert deployment.scraped("policy_refused") == ["1.0"]
    put(file, YAML)
    assert await policies.reload() and policies.last_refused == ""
    assert deployment.scraped("policy_refused") == ["0.0"]
    assert deployment.scraped("policy_bundle_version") == []


async def test_what_injects_is_prepared_before_it_is_in_force(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the thread that read the files: a heavy library is not imported while requests wait."""
    prepared: list[tuple[str, bool, str]] = []

    def prepare(self: Injector) -> None:
        prepared.append((self.key, bool(deployment.state.policies), threading.current_thread().name))

    monkeypatch.setattr(Injector, "prepare", prepare)
    policies = deployment.policies("default.yaml")
    put(deployment.place / "default.yaml", WITH_A_CREDENTIAL)
    policies.load()
    assert [(key, in_force) for key, in_force, _ in prepared] == [("header", False)]
    assert await policies.reload()
    assert len(prepared) == 2 and prepared[1][2] != threading.main_thread().name


async def test_a_fault_of_ours_in_reading_is_a_refusal_like_any_other(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that trips the reader stays out, loudly; it is no traceback once a second."""
    policies = deployment.policies("default.yaml")
    put(deployment.place / "default.yaml", YAML)
    policies.load()
    before = deployment.state.policies

    def trip(*_: object) -> None:
        raise KeyError("ask")

    monkeypatch.setattr(PolicyWatch, "read", trip)
    assert not await policies.reload() and not await policies.reload()
    assert deployment.state.policies is before and "fault of Coatcheck's (KeyError)" in policies.last_refused
    assert sum(isinstance(each, PolicyEvent) and not each.loaded for each in deployment.told) == 1
    assert deployment.scraped("policy_refused") == ["1.0"]


def test_a_daemon_does_not_begin_on_what_nobody_signed(deployment: Deployment) -> None:
    """With a trust root, a good policy file is refused as well as a stranger's bundle."""
    put(deployment.place / "keys.pem", pem(KEY))
    put(deployment.place / "default.yaml", YAML)
    put(deployment.place / "release.bundle", signed(Ed25519PrivateKey.generate()))
    for name in ("default.yaml", "release.bundle"):
        with pytest.raises(PolicyError):
            deployment.policies(name, "keys.pem").load()
    assert deployment.state.policies == {}


async def test_only_signed_and_newer_bundles_come_into_force(deployment: Deployment) -> None:
    """An older one, an unsigned one: the old policies stay. What is in force says version, owner and key."""
    put(deployment.place / "keys.pem", pem(KEY))
    file = put(deployment.place / "release.bundle", signed(KEY, 2))
    policies = deployment.policies("release.bundle", "keys.pem")
    policies.load()
    put(file, signed(KEY, 3, YAML + b"# three\n"))
    assert await policies.reload()
    three = deployment.state.policies
    for data in (signed(KEY, 2), signed(Ed25519PrivateKey.generate(), 4), YAML, b""):
        put(file, data)
        assert not await policies.reload()
        assert deployment.state.policies is three
    assert policies.bundle is not None and policies.bundle.bundle.version == 3
    assert deployment.scraped("policy_bundle_version") == ["3.0"]
    told = [each.detail for each in deployment.told if isinstance(each, DaemonEvent)]
    assert [detail[: detail.index(",")] for detail in told] == ["version 2 of tests", "version 3 of tests"]


def test_a_bundle_for_which_no_trust_root_is_set_says_so(deployment: Deployment) -> None:
    """Not that it is bad YAML."""
    put(deployment.place / "release.bundle", signed(KEY))
    with pytest.raises(
        PolicyError, match="no trust root is set, so no signature can be trusted; set COATCHECK_POLICY_TRUST"
    ):
        deployment.policies("release.bundle").load()


async def test_a_changed_trust_root_is_looked_at_by_itself(deployment: Deployment) -> None:
    """A key that was taken out is told of at once: what it signed stays in force until something else is."""
    root = put(deployment.place / "keys.pem", pem(KEY))
    put(deployment.place / "release.bundle", signed(KEY))
    policies = deployment.policies("release.bundle", "keys.pem")
    policies.load()
    await policies.look()
    await policies.look()
    assert policies.last_refused == ""
    put(root, pem(Ed25519PrivateKey.generate()) + b"# and more\n")
    await policies.look()
    await policies.look()
    assert "and trusted are" in policies.last_refused and deployment.state.policies


def test_observing_needs_the_daemons_word_too(deployment: Deployment) -> None:
    """A policy file alone cannot open the way to every host; where it may, that is told."""
    yaml = YAML + b"observe: {reason: to learn what it needs, until: 2099-12-31}\n"
    put(deployment.place / "default.yaml", yaml)
    with pytest.raises(
        PolicyError, match=r"default\.yaml.*may not; remove it, or set COATCHECK_POLICY_OBSERVE"
    ):
        deployment.policies("default.yaml").load()
    assert deployment.state.policies == {}
    settings = Settings(policy=deployment.place / "default.yaml", policy_observe="agents without any data")
    PoliciesInForce(
        settings, deployment.directory, deployment.state, deployment.metrics, deployment.told.append
    ).load()
    (told,) = [each for each in deployment.told if isinstance(each, DaemonEvent)]
    assert told.what == "observing"
    assert told.detail == "policy default until 2099-12-31: to learn what it needs; agents without any data"


async def test_three_hundred_reloads_at_once_are_two(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one under way may have read already, so later callers get one more, all the same one."""
    put(deployment.place / "default.yaml", YAML)
    policies = deployment.policies("default.yaml")
    policies.load()
    read, reads = PolicyWatch.read, 0

    def counted(watch: PolicyWatch) -> object:
        nonlocal reads
        reads += 1
        return read(watch)

    monkeypatch.setattr(PolicyWatch, "read", counted)
    first = asyncio.create_task(policies.reload())
    while not reads:
        await asyncio.sleep(0)
    put(deployment.place / "default.yaml", YAML + b"# changed after it was read\n")
    _, *later = await asyncio.gather(first, *(policies.reload() for _ in range(300)))
    assert all(later)  # the first may have seen half of the file
    assert reads == 2
    assert (
        deployment.state.policies["default"].sha256
        == hashlib.sha256((deployment.place / "default.yaml").read_bytes()).hexdigest()
    )
