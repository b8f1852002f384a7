"""Which secrets a session was served, kept for scrubbing."""

from collections.abc import Iterable, Mapping

import pytest

from coatcheck.decision.scrub import Patterns, Run, scrub_bytes
from coatcheck.request.served_secrets import SessionSecrets
from tests.known_secrets import known_secret

OLD, NEW = known_secret("before rotation"), known_secret("after rotation")


def masked(secrets: SessionSecrets, session: str, text: str) -> str:
    patterns = secrets.patterns(session)
    return scrub_bytes(patterns, text.encode())[0].decode() if patterns else text


def test_a_rotated_secret_stays_secret() -> None:
    """What a session was served before the rotation is still taken out of its answers (I1)."""
    secrets = SessionSecrets()
    secrets.add("a", OLD, "")
    secrets.add("a", NEW, "")
    assert masked(secrets, "a", OLD + NEW) == "*" * len(OLD + NEW)


def test_sessions_are_told_apart() -> None:
    """A session loses what it was served, not what others were: that would be an oracle for them."""
    secrets = SessionSecrets()
    secrets.add("a", OLD, "")
    assert secrets.patterns("b") is None


def test_the_same_secrets_are_compiled_once() -> None:
    """A thousand sessions with one key share its patterns."""
    secrets = SessionSecrets()
    for session in ("a", "b"):
        secrets.add(session, OLD, "")
        secrets.add(session, NEW, "user")
    assert secrets.patterns("a") is secrets.patterns("b")


def test_too_many_secrets_are_refused_and_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays flat (I9), and not at the price of a secret that is no longer looked for (I1)."""
    monkeypatch.setattr(SessionSecrets, "KEPT", 3)
    secrets = SessionSecrets()
    assert [secrets.add("a", f"{OLD}{n:04}", "") for n in range(5)] == [True, True, True, False, False]
    assert masked(secrets, "a", f"{OLD}0000") == "*" * len(f"{OLD}0000")
    secrets.forget("a")
    assert secrets.patterns("a") is None


def test_the_latest_signatures_are_looked_for_in_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the secrets, in one session, and so many: a sandbox can have any number made (I9)."""
    monkeypatch.setattr(SessionSecrets, "MINTED", 2)
    secrets = SessionSecrets()
    made = [f"{n:064x}" for n in range(3)]
    secrets.add_minted("a", made[0])
    secrets.add("a", OLD, "")
    secrets.add_minted("a", made[1])
    assert secrets.patterns("b") is None
    assert masked(secrets, "a", f"{OLD} {made[0]} {made[1]}").strip("* ") == ""
    own = secrets.add_minted("a", made[2])
    assert masked(secrets, "a", f"{made[0]} {made[1]} {made[2]}").split(" ") == [made[0], "*" * 64, "*" * 64]
    assert secrets.add_minted("a", made[2]) is own, "the same request again costs nothing"
    secrets.forget("a")
    assert secrets.patterns("a") is None


def test_a_signature_does_not_compile_the_sessions_secrets_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with one costs the same however many secrets its session was served."""
    secrets = SessionSecrets()
    secrets.add("a", OLD, "")
    compiled: list[int] = []
    build = Patterns.__init__

    def counted(
        self: Patterns,
        patterns: Iterable[bytes],
        most_stride: int = 16,
        runs: Mapping[bytes, Run] | None = None,
    ) -> None:
        build(self, patterns, most_stride, runs)
        compiled.append(len(self))

    monkeypatch.setattr(Patterns, "__init__", counted)
    own = secrets.add_minted("a", "5" * 64)
    assert compiled == [len(own)]
    assert masked(secrets, "a", OLD + "5" * 64) == "*" * (len(OLD) + 64)
