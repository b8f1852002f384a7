"""`coatcheck sidecar`: the pod's session, from its token, for as long as the token proves the pod."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.control import Answer, ControlClient
from coatcheck.kubernetes.sidecar import Pod, SidecarError, prove
from coatcheck.planes.origins.platform_token import PlatformTokens, TokenProof
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

    def start(self, lease: float = 120, address: str = "10.1.2.3") -> subprocess.Popen[bytes]:
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
        options = ["--token-file", str(self.directory / "tokens/token"), "--pod-uid", UID]
        options += ["--address", address, "--workload-dir", str(self.directory / "workload")]
        command = [sys.executable, "-m", "coatcheck", "sidecar", *options]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(command, env=settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @contextmanager
    def running(self, lease: float = 120, address: str = "10.1.2.3") -> Iterator[Answer]:
        """Its only session, once the workload may begin; the container is killed afterwards."""
        started = self.said().count(READY)
        process = self.start(lease, address)
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

    def prove(self) -> TokenProof:
        """What its token proves now."""
        tokens = PlatformTokens(self.platform.file, ISSUER, AUDIENCE)
        pod = Pod(self.directory / "tokens/token", UID, "10.1.2.3", "default", self.directory / "workload")
        return prove(tokens, pod, time.time())

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


def test_the_session_is_whose_the_token_says_and_outlives_the_container(volumes: PodVolumes) -> None:
    """Tenant and subject are the cluster's words. A container that is started again goes on with it: the
    workload's processes keep their handles. SIGTERM, with which pods end, ends it in order."""
    with volumes.running() as before:
        pass
    # After a node's restart: by the address of before nobody would be known, and its processes are gone.
    with volumes.running(address="10.1.2.4") as first:
        assert first["id"] != before["id"]
        assert (first["tenant"], first["subject"]) == ("agents", "pod/agent-0")
        assert first["origin"] == {"class": "address", "value": "transparent|10.1.2.4"}
        assert first["isolation"] == "namespace"
        given = volumes.environment.read_text()
        assert "OPENAI_API_KEY=" in given
    with volumes.running(address="10.1.2.4") as second:
        assert second["id"] == first["id"] and volumes.environment.read_text() == given
        process = second["process"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, volumes.said()
    assert "ended" in [record["change"] for record in volumes.records("session")]


@pytest.mark.parametrize(
    ("uid", "changed", "said"),
    [
        ("another-pod", {}, "another pod's"),
        (UID, {"kubernetes.io": {"pod": {"name": "agent-0", "uid": UID}}}, "another pod's"),
        (UID, {"aud": ["vault"]}, "proves nothing"),
        (UID, {"iss": "https://elsewhere.example"}, "proves nothing"),
        (UID, {"exp": 1}, "proves nothing"),
    ],
)
def test_a_token_that_does_not_prove_this_pod_opens_nothing(
    volumes: PodVolumes, uid: str, changed: dict[str, object], said: str
) -> None:
    """Another pod's, one without a namespace, another audience's, another issuer's, an old one."""
    volumes.token(uid, **changed)
    with pytest.raises(SidecarError, match=said):
        volumes.prove()


def test_a_token_is_read_anew_each_time(volumes: PodVolumes) -> None:
    """The kubelet replaces it, long before the old one ends."""
    volumes.token(UID, exp=1)
    with pytest.raises(SidecarError):
        volumes.prove()
    volumes.token(UID)
    assert (volumes.prove().namespace, volumes.prove().pod) == ("agents", "agent-0")


def test_a_token_that_is_not_there_is_told(volumes: PodVolumes) -> None:
    """With what to look for."""
    (volumes.directory / "tokens/token").unlink()
    with pytest.raises(SidecarError, match="cannot read the pod's token file") as refused:
        volumes.prove()
    assert refused.value.hint == "is the projected volume mounted?"


def test_the_address_of_a_pod_that_died_without_a_word_is_waited_for(volumes: PodVolumes) -> None:
    """Its session holds it until its lease lapses, also at other daemons of a fleet."""
    with volumes.running(lease=6) as before:
        pass
    (volumes.directory / "state/pod-session.json").unlink()  # as another pod, which never had it
    with volumes.running(lease=6) as after:
        assert after["id"] != before["id"] and after["origin"] == before["origin"]
    assert "cannot be opened yet" in volumes.said()


def test_what_was_revoked_stays_so(volumes: PodVolumes) -> None:
    """The container goes on and refuses; a new one does not start: it is nobody's to undo."""
    with volumes.running(lease=9) as session:
        volumes.client.revoke(session["id"])
        volumes.until(lambda: "the pod's session is over" in volumes.said(), session["process"])
        assert [each["status"] for each in volumes.client.list()] == ["revoked"]
    assert "was revoked" in volumes.refused()


def test_the_session_lapses_with_the_token(volumes: PodVolumes) -> None:
    """A pod that is gone gets no new token; a container that lives on has no authority, and says so."""
    with volumes.running(lease=9) as session:
        volumes.token(UID, exp=int(time.time()) - 1)
        assert session["process"].wait(SECONDS) != 0
    assert "proves nothing" in volumes.said()
