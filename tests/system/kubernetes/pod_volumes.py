"""The volumes of a pod, a daemon and a sidecar on them, as Kubernetes would run both."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.control import Answer, ControlClient
from coatcheck.kubernetes.sidecar import Owner, Pod, PodToken, owner_of
from coatcheck.planes.origins.platform_keys import KeyFile
from coatcheck.planes.origins.platform_token import PlatformTokens
from tests.planes.platform import AUDIENCE, ISSUER, Platform
from tests.system.e2e.story import policy

SECONDS = 120.0
READY = "the workload may begin"
UID = "6b1f9a3c-0d0e-4c4f-9b8e-3f0c2a7d5e11"


@dataclass
class PodVolumes:
    """What a pod's proxy has of its own, between two starts of its container."""

    directory: Path
    platform: Platform = field(init=False)

    def __post_init__(self) -> None:
        for name in ("policies", "workload", "tokens"):
            (self.directory / name).mkdir()
        (self.directory / "policies/default.yaml").write_text(policy(secret="file:openai/key#value"))
        self.platform = Platform(self.directory / "jwks.json")
        self.token(UID)

    def token(self, uid: str, **changed: Any) -> None:
        new = self.directory / "tokens/new"
        new.write_text(self.platform.token(uid, **changed))
        new.replace(self.directory / "tokens/token")

    @property
    def client(self) -> ControlClient:
        return ControlClient(self.directory / "run/control.sock")

    def said(self) -> str:
        """By all its containers up to now."""
        log = self.directory / "log"
        return log.read_text() if log.exists() else ""

    @property
    def environment(self) -> Path:
        return self.directory / "workload/environment"

    def start(
        self, lease: float = 120, address: str = "10.1.2.3", owner: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """`owner`: options that name the session's owner, instead of the pod's token."""
        settings = {
            "COATCHECK_STATE_DIR": str(self.directory / "state"),
            "COATCHECK_RUNTIME_DIR": str(self.directory / "run"),
            "COATCHECK_POLICY": str(self.directory / "policies"),
            "COATCHECK_TRANSPARENT_PORT": "0",
            "COATCHECK_TRANSPARENT_TRUST_ADDRESSES": "true",
            "COATCHECK_SESSION_LEASE": str(lease),
            "COATCHECK_TOKEN_JWKS_FILE": str(self.platform.file),
            "COATCHECK_TOKEN_ISSUER": ISSUER,
            "COATCHECK_TOKEN_AUDIENCE": AUDIENCE,
            "COATCHECK_MAX_SANDBOXES": "0",
            "PATH": os.environ["PATH"],
        }
        token = ("--token-file", str(self.directory / "tokens/token"), "--pod-uid", UID)
        options = [*(owner or token), "--address", address]
        options += ["--workload-dir", str(self.directory / "workload")]
        command = [sys.executable, "-m", "coatcheck", "sidecar", *options]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(command, env=settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @contextmanager
    def running(
        self, lease: float = 120, address: str = "10.1.2.3", owner: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Its only session, once the workload may begin; the container is killed afterwards."""
        started = self.said().count(READY)
        process = self.start(lease, address, owner)
        try:
            self.until(lambda: self.said().count(READY) > started, process)
            yield self.session() | {"process": process}
        finally:
            process.kill()
            process.wait(SECONDS)

    def until(self, holds: Callable[[], bool], process: "subprocess.Popen[bytes] | None" = None) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline and (process is None or process.poll() is None), self.said()
            time.sleep(0.05)

    def session(self) -> Answer:
        return max(self.client.list(), key=lambda each: float(each["opened_at"]))

    def prove(self) -> Owner:
        """Whose the session is, by its token as of now."""
        tokens = PlatformTokens(KeyFile(self.platform.file), ISSUER, AUDIENCE)
        token = PodToken(self.directory / "tokens/token", UID)
        return owner_of(Pod(token, "10.1.2.3", "default", self.directory / "workload"), tokens, time.time())

    def refused(self) -> str:
        """What a container says that does not start."""
        process = self.start()
        assert process.wait(SECONDS) != 0
        return self.said()

    def records(self, kind: str) -> list[Answer]:
        lines = (self.directory / "state/audit/audit.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["type"] == kind]


@pytest.fixture
def volumes(tmp_path: Path) -> PodVolumes:
    return PodVolumes(tmp_path)
