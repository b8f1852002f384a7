"""What a host has room for, and what it says when it has none."""

from dataclasses import replace
from typing import Any

import pytest

from coatcheck.decision.session import Isolation
from coatcheck.durable import admission
from coatcheck.durable.admission import check_room, memory, range_for
from coatcheck.durable.backends import Choice
from coatcheck.durable.elastic import Elastic, Growth
from coatcheck.durable.sandbox import Sandbox, WantedSandbox
from coatcheck.sandbox.limits import Limits
from coatcheck.sandbox.resources import Resources, Size
from coatcheck.sandbox.sandbox import Backend, SandboxProblem, SandboxRefused, SandboxState

SANDBOX = Sandbox(
    id="sbx_0",
    tenant="acme",
    subject="agent",
    policy="default",
    opened_by="launcher",
    backend=Backend.MICROVM,
    isolation=Isolation.EMULATED,
    why="",
    sessions={},
    created_at=0,
    expires_at=0,
    resources=Resources(memory_mib=512, cpus=1, disk_mib=64, processes=64),
)
TOTAL = 4096


def has(memory_mib: int, **different: Any) -> Sandbox:
    return replace(SANDBOX, resources=replace(SANDBOX.resources, memory_mib=memory_mib), **different)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GiB, of which 6 are free."""
    monkeypatch.setattr(admission, "memory", lambda: (8192, 6144))


def test_a_grow_that_others_were_promised_is_refused() -> None:
    """The caller learns nothing of what has it."""
    others = [has(2048, id="sbx_1"), has(1024, id="sbx_2")]
    check_room(others, SANDBOX, Size(1024, 4), TOTAL)
    with pytest.raises(SandboxRefused, match="no room for 513 MiB more") as refused:
        check_room(others, SANDBOX, Size(1025, 1), TOTAL)
    assert refused.value.problem is SandboxProblem.NO_ROOM and "TOTAL_MEMORY" in refused.value.hint


@pytest.mark.parametrize("state", ["sleeping", SandboxState.ENDED])
def test_what_takes_no_memory_is_not_counted(state: SandboxState) -> None:
    """It has none of this host's."""
    gone = has(4096, state=state)
    check_room([gone], SANDBOX, Size(4096, 1), TOTAL)


def test_shrinking_is_never_refused() -> None:
    """However much was promised by whatever mistake."""
    check_room([has(10_000)], SANDBOX, Size(512, 1), TOTAL)
    check_room([has(10_000)], SANDBOX, Size(256, 4), TOTAL)


def test_without_a_setting_it_is_three_quarters_of_the_machine() -> None:
    """And never what is not free at that moment."""
    check_room([], SANDBOX, Size(6144, 1), None)
    with pytest.raises(SandboxRefused):
        check_room([], SANDBOX, Size(6145, 1), None)
    with pytest.raises(SandboxRefused):
        check_room([], SANDBOX, Size(512 + 6144, 1), 100_000)


def test_this_machine_says_what_it_has() -> None:
    """In MiB."""
    monkeypatched, whole = memory, admission.__dict__["memory"]
    assert whole() == (8192, 6144)
    total, free = monkeypatched()
    assert 0 < free <= total


def wanted(backend: Backend, growth: Growth | None) -> WantedSandbox:
    choice = Choice(backend, Isolation.EMULATED, "", None)
    return WantedSandbox("acme", "agent", "default", "launcher", choice, {}, growth=growth)


def test_only_a_microvm_grows() -> None:
    """Said when it is asked for, not when somebody needs it."""
    most = Limits(Resources(memory_mib=8192, cpus=4))
    assert range_for(wanted(Backend.NAMESPACE, None), Limits(), most) is None
    grows = range_for(wanted(Backend.MICROVM, Growth(2048, 2)), Limits(), most)
    assert grows == Elastic(512, 2048, 1, 2)
    with pytest.raises(SandboxRefused, match="one size") as refused:
        range_for(wanted(Backend.NAMESPACE, Growth(2048, 2)), Limits(), most)
    assert refused.value.problem is SandboxProblem.NOT_ELASTIC
