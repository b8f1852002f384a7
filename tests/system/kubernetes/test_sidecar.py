"""`coatcheck sidecar`: the pod's session, from its token, for as long as the token proves the pod."""

import signal

import pytest

from coatcheck.kubernetes.sidecar import Owner, SidecarError
from tests.system.kubernetes.pod_volumes import SECONDS, UID, PodVolumes, volumes

__all__ = ["volumes"]


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
    assert volumes.prove() == Owner("agents", "pod/agent-0")


def test_without_a_token_the_operator_names_the_owner(volumes: PodVolumes) -> None:
    """Podman and docker compose sign nothing; the pod's address is where connections come from."""
    with volumes.running(owner=("--tenant", "team", "--subject", "reviewer")) as session:
        assert (session["tenant"], session["subject"]) == ("team", "reviewer")
        assert session["origin"] == {"class": "address", "value": "transparent|10.1.2.3"}
        assert "OPENAI_API_KEY=" in volumes.environment.read_text()


def test_half_of_a_proof_is_a_mistake(volumes: PodVolumes) -> None:
    """A token whose pod nobody named would be any pod's."""
    process = volumes.start(owner=("--token-file", str(volumes.directory / "tokens/token")))
    assert process.wait(SECONDS) == 2
    assert "--token-file and --pod-uid belong together" in volumes.said()


def test_a_token_that_is_not_there_is_told(volumes: PodVolumes) -> None:
    """With what to look for."""
    (volumes.directory / "tokens/token").unlink()
    with pytest.raises(SidecarError, match="cannot read the pod's token file") as refused:
        volumes.prove()
    assert refused.value.hint == "is the projected volume mounted?"
