"""What the doctor is shown in the tests: real files and sockets below a test's own directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coatcheck.doctor.finding import Finding, Level, Subject
from coatcheck.settings.daemon import Settings


def subject(
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    daemon_pid: int | None = None,
    control_socket: Path | None = None,
    policies: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Subject:
    """A set-up whose state directory is `directory`/state."""
    given = {"state_dir": directory / "state", "policy": directory / "policies"} | settings
    made = Settings(**given)
    return Subject(made, environment or {}, control_socket or made.control, policies or {}, daemon_pid)


def only(found: list[Finding]) -> Finding:
    """The one finding; AssertionError when there are more or none."""
    (finding,) = found
    if finding.level is not Level.OK:
        assert finding.hint, f"{finding.message}: a finding without a next step"
    return finding
