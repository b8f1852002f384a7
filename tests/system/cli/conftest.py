"""A real daemon in a process of its own, on a real OpenBao, in front of the demo's origin."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coatcheck.doctor.control import daemon_pid
from coatcheck.policy.shipped import POLICY
from coatcheck.secrets.embedded import EmbeddedVault
from demo.upstreams.server import TlsServer
from tests.bao import bao
from tests.cli.transcript import COATCHECK, Said, coatcheck, environment
from tests.upstreams import UpstreamTls

__all__ = ["bao"]


@dataclass(frozen=True, slots=True)
class Served:
    """A running `coatcheck serve`, and how others are told of it."""

    process: subprocess.Popen[bytes]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    """Of its clients: only where it is."""
    settings: Mapping[str, str] = field(repr=False)
    """Its own."""

    async def coatcheck(self, *arguments: str | Path, stdin: str = "", **env: str) -> Said:
        """The command, while this loop goes on serving the origin."""
        return await asyncio.to_thread(
            coatcheck, *arguments, cwd=self.cwd, env={**self.env, **env}, stdin=stdin
        )

    async def sessions(self) -> dict[str, str]:
        """Session -> status."""
        listed = json.loads((await self.coatcheck("session", "list", "--json")).out)
        return {each["id"]: each["status"] for each in listed}

    def start(self, *arguments: str, **env: str) -> "subprocess.Popen[str]":
        """The command, left running; its starter ends it."""
        return subprocess.Popen(
            [COATCHECK, *arguments], cwd=self.cwd, env=environment(**{**self.env, **env}), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """For sockets: a path of theirs has 107 bytes at most, and pytest's are long."""
    made = Path(tempfile.mkdtemp(prefix="cct-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def good(tmp_path: Path, short_dir: Path) -> dict[str, str]:
    """Settings with which a daemon starts."""
    (tmp_path / "policies").mkdir(mode=0o755)
    shutil.copy(POLICY, tmp_path / "policies/default.yaml")
    return {
        "COATCHECK_STATE_DIR": str(tmp_path / "state"),
        "COATCHECK_RUNTIME_DIR": str(short_dir / "run"),
        "COATCHECK_LOG_LEVEL": "error",
    }


@contextmanager
def serving(cwd: Path, settings: Mapping[str, str], log: Path) -> Iterator[Served]:
    """`coatcheck serve` with `settings`, ended by SIGTERM."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [COATCHECK, "serve"], cwd=cwd, env=environment(**settings), stdout=output, stderr=output
        )
    control = Path(settings["COATCHECK_CONTROL_SOCKET"])
    try:
        until(lambda: daemon_pid(control) == process.pid or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield Served(process, cwd, {"COATCHECK_CONTROL_SOCKET": str(control)}, settings)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(true: "object", seconds: float = 30.0) -> None:
    """Wait until `true()`; AssertionError when it does not come."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


@pytest.fixture
def upstream_settings(origin_server: TlsServer, upstream_tls: UpstreamTls) -> dict[str, str]:
    """Settings that lead the model APIs' names to the demo's origin."""
    names = {
        f"{name}:443": f"127.0.0.1:{origin_server.port}" for name in ("api.openai.com", "api.anthropic.com")
    }
    return {
        "COATCHECK_CONNECT_TO": json.dumps(names),
        "COATCHECK_UPSTREAM_CA_FILE": str(upstream_tls.ca),
        "COATCHECK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
    }


@pytest.fixture
async def daemon(
    bao: EmbeddedVault,
    real_keys: dict[str, str],
    upstream_settings: dict[str, str],
    tmp_path: Path,
    output_dir: Path,
    short_dir: Path,
) -> AsyncIterator[Served]:
    """On the sample policy, with the origin's keys in OpenBao."""
    for name, key in real_keys.items():
        await bao.put(name, {"api_key": key})
    login = await bao.daemon_login(tmp_path)
    policies = tmp_path / "policies"
    policies.mkdir()
    shutil.copy(POLICY, policies / "default.yaml")
    for path in (policies, policies / "default.yaml"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    settings = upstream_settings | {
        "COATCHECK_STATE_DIR": str(output_dir / "state"),
        "COATCHECK_RUNTIME_DIR": str(short_dir / "run"),
        "COATCHECK_CONTROL_SOCKET": str(short_dir / "run/control.sock"),
        "COATCHECK_POLICY": str(policies),
        "COATCHECK_VAULT_URL": bao.url,
        "COATCHECK_VAULT_LOGIN": "approle",
        "COATCHECK_VAULT_ROLE_ID": login.role_id,
        "COATCHECK_VAULT_SECRET_ID_FILE": str(login.secret_id_file),
        "COATCHECK_DRAIN_SECONDS": "1",
    }
    with serving(tmp_path, settings, output_dir / "daemon.log") as served:
        yield served


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(pid: int) -> None:
    """Kill a process of a test's own, if it is still there."""
    if alive(pid):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A directory with the sample policy and its samples."""
    directory = tmp_path / "policies"
    (directory / "samples").mkdir(parents=True)
    (directory / "default.yaml").write_bytes(POLICY.read_bytes())
    (directory / "samples/default.yaml").write_bytes(
        (Path(__file__).parents[3] / "policies/samples/default.yaml").read_bytes()
    )
    for path in (directory, directory / "default.yaml"):
        path.chmod(0o755)
    return directory
