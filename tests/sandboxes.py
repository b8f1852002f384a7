"""A daemon with callers, and sandboxes of the namespace backend that share it: for tests that drive them."""

import hashlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from coatcheck.client.control import ControlClient
from coatcheck.client.sandbox import Sandbox, SandboxClient
from coatcheck.containers import cgroup
from coatcheck.images.build import build
from coatcheck.images.cache import find
from coatcheck.images.parts import Source
from coatcheck.images.problem import ImageError
from coatcheck.settings.daemon import Settings
from demo.upstreams.origin import origin
from tests.daemon import TestDaemon, running_daemon
from tests.known_secrets import known_secret
from tests.upstreams import NAMES, UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: memory:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
  anthropic:
    secret: memory:secret/anthropic#api_key
    hosts: [api.anthropic.com]
    inject: {header: X-Api-Key}
    env: ANTHROPIC_API_KEY
rules:
  - {name: openai, hosts: [api.openai.com], methods: [GET, POST], credentials: [openai]}
  - {name: anthropic, hosts: [api.anthropic.com], methods: [GET, POST], credentials: [anthropic]}
"""

CALLERS: Mapping[str, Mapping[str, Any]] = {
    "launcher": {
        "role": "launcher",
        "tenants": ["acme"],
        "policies": ["default"],
        "isolation": ["namespace", "gvisor"],
    },
    "other": {"role": "launcher", "tenants": ["acme"], "policies": ["default"], "isolation": ["namespace"]},
    "hardware-only": {
        "role": "launcher",
        "tenants": ["acme"],
        "policies": ["default"],
        "isolation": ["hardware"],
    },
    "operator": {"role": "operator", "tenants": ["acme"]},
    "elsewhere": {"role": "operator", "tenants": ["globex"]},
}
_NUMBERS = itertools.count()
SECONDS = 30.0
"""Until something that takes less than one counts as stuck."""


def token_of(caller: str) -> str:
    return known_secret(f"sandboxes token of {caller}", prefix="cct_")


def write_grants(path: Path, callers: Mapping[str, Mapping[str, Any]] = CALLERS) -> Path:
    lines: list[str] = []
    for name, entry in callers.items():
        proof = hashlib.sha256(token_of(name).encode()).hexdigest()
        lines += ["[[caller]]", f'name = "{name}"', f'token_sha256 = "{proof}"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


@dataclass(frozen=True, slots=True)
class Place:
    """A daemon, and how its callers reach it."""

    daemon: TestDaemon
    grants: Path

    @property
    def socket(self) -> Path:
        return self.daemon.settings.control

    @property
    def url(self) -> str:
        assert self.daemon.control is not None
        host, port = self.daemon.control.addresses[0]
        return f"http://{host}:{port}"

    def control(self, caller: str | None = None) -> ControlClient:
        """As `caller` over TCP; None: the owner, over the Unix socket."""
        if caller is None:
            return ControlClient(self.socket)
        return ControlClient(url=self.url, token=token_of(caller))

    def client(self, caller: str | None = None) -> SandboxClient:
        if caller is None:
            return SandboxClient(self.socket)
        return SandboxClient(url=self.url, token=token_of(caller))

    def directory(self, sandbox: str) -> Path:
        return self.daemon.sandboxes.directory(sandbox)

    def ended(self, sandbox: str) -> dict[str, Any]:
        """The audit record of its end."""
        (found,) = [
            record
            for record in self.daemon.records()
            if record["type"] == "sandbox" and record["sandbox"] == sandbox and record["change"] == "ended"
        ]
        return found


WANTED: Mapping[str, Any] = {
    "tenant": "acme",
    "subject": "agent",
    "policy": "default",
    "backend": "namespace",
}


@asynccontextmanager
async def place(
    all_output: Path, upstream_tls: UpstreamTls, policy: str = POLICY, **settings: Any
) -> AsyncIterator[Place]:
    """A daemon in a directory of its own, with CALLERS over TCP, in front of the demo's origin."""
    keys = {
        "openai": known_secret("the origin's OpenAI key", prefix="sk-proj-"),
        "anthropic": known_secret("the origin's Anthropic key", prefix="sk-ant-"),
    }
    directory = all_output / f"s{next(_NUMBERS)}"  # short: sockets are in it
    directory.mkdir()
    grants = write_grants(directory / "grants.toml")
    async with (
        origin(upstream_tls.certificate, upstream_tls.key, keys, names=NAMES, event_gap=0.01) as server,
        running_daemon(
            directory,
            policy,
            {f"memory:secret/{name}#api_key": key for name, key in keys.items()},
            upstream_ca=upstream_tls.ca,
            connect_to={f"{name}:443": server.port for name in ("api.openai.com", "api.anthropic.com")},
            control_port=0,
            control_grants=grants,
            **settings,
        ) as daemon,
    ):
        yield Place(daemon, grants)


@asynccontextmanager
async def sandbox_in(where: Place, caller: str | None = None, **different: Any) -> AsyncIterator[Sandbox]:
    """One that runs, and is gone afterwards."""
    async with where.client(caller) as client, await client.create(**{**WANTED, **different}) as made:
        yield made


def image_cache() -> Path:
    """Where `make setup` has put the default image, with this source's agent. Fails the test elsewhere."""
    cache = Settings().cache
    try:
        find(cache, "default")
        build(cache, "default", Source(), print)  # its initramfs anew, when the agent's source has changed
    except ImageError as error:
        pytest.fail(f"{error}: {error.hint}", pytrace=False)
    return cache


def until(true: Callable[[], object], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def supervisors() -> set[int]:
    """Supervisors that this process started."""
    return {
        child.pid
        for child in psutil.Process().children()
        if "coatcheck.launcher" in " ".join(child.cmdline())
    }


@contextmanager
def nothing_left(directory: Path) -> Iterator[set[int]]:
    """Processes that the block puts into the set are gone afterwards, and `directory`, and its cgroup."""
    processes: set[int] = set()
    yield processes
    until(lambda: not any(alive(pid) for pid in processes))
    until(lambda: not directory.exists())
    until(lambda: not _groups(directory.name))


def family(pid: int) -> set[int]:
    """A process and all below it."""
    return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _groups(name: str) -> list[Path]:
    found = cgroup.find()
    places = {*([found.unified] if found.unified else []), *found.v1.values()}
    return [group for place in places if (group := place / f"coatcheck-{name}").exists()]
