"""Places that contradict each other, or without which nothing runs."""

import pytest

from coatcheck.policy.file.filesystem_review import review_filesystem
from coatcheck.policy.file.models import FilesystemSpec


def found(allow_write: list[str], deny_read: list[str]) -> list[str]:
    data = {"allow_write": allow_write, "deny_read": deny_read} if deny_read else {"allow_write": allow_write}
    return [finding.message for finding in review_filesystem(FilesystemSpec.model_validate(data))]


def test_a_hidden_place_in_one_that_may_be_written_is_fine() -> None:
    """That is what deny_read is for; the other way round nothing could be written."""
    assert found(["/home/agent", "/srv"], ["/home/agent/.ssh", "/etc/shadow"]) == []
    assert found(["/home/agent/.ssh"], ["/home/agent"]) == ["/home/agent/.ssh may be written but not read"]
    assert found(["/home/agentx"], ["/home/agent"]) == []


@pytest.mark.parametrize("place", ["/proc", "/dev/shm", "/sys/fs", "/run", "/run/coatcheck/ca.pem", "/"])
def test_the_kernels_and_the_agents_own_places_are_never_written(place: str) -> None:
    """/run/coatcheck holds the certificates that commands trust: anyone who writes there reads their
    traffic."""
    assert len(found([place], [])) == 1


@pytest.mark.parametrize("place", ["/", "/usr", "/lib64", "/proc", "/run"])
def test_what_every_command_reads_cannot_be_hidden(place: str) -> None:
    """The policy would end every command before its first line."""
    assert len(found([], [place])) == 1
