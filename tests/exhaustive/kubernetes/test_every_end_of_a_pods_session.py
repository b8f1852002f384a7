"""`coatcheck sidecar`: a pod's session ends with its token, its pod or a revocation."""

import time

from tests.system.kubernetes.pod_volumes import SECONDS, UID, PodVolumes, volumes

__all__ = ["volumes"]


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
