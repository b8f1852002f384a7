"""A new size asked for from inside: who may, how often, and every way to ask it wrongly."""

import json

import pytest

from coatcheck.durable.elastic import Initiator
from coatcheck.durable.elasticity import Elasticity
from coatcheck.durable.metadata_scale import RATE, ScaleResource
from coatcheck.metadata.http import MAX_BODY, MetadataRequest, Refused
from coatcheck.sandbox.limits import Limits
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused


class Scaler(Elasticity):
    """A sandbox whose size a test decides."""

    def __init__(self) -> None:
        super().__init__("sbx_0", Limits())
        self.asked: list[tuple[int | None, int | None, Initiator]] = []
        self.refuses: SandboxRefused | None = None

    async def scale(self, memory_mib: int | None, cpus: int | None, by: Initiator) -> Size:
        self.asked.append((memory_mib, cpus, by))
        if self.refuses is not None:
            raise self.refuses
        return Size(memory_mib or 512, cpus or 1)


@pytest.fixture
def scaler() -> Scaler:
    return Scaler()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def resource(scaler: Scaler, now: list[float]) -> ScaleResource:
    return ScaleResource(scaler, "agent", lambda: now[0])


def asked(body: bytes) -> MetadataRequest:
    return MetadataRequest("POST", "169.254.169.254", "/v1/scale", {}, body)


async def refused(resource: ScaleResource, body: bytes, identity: str = "agent") -> Refused:
    with pytest.raises(Refused) as found:
        await resource.answer(asked(body), identity)
    return found.value


async def test_either_or_both_are_asked_for(resource: ScaleResource, scaler: Scaler) -> None:
    """What is left out stays; it is told that it came from inside."""
    answer = await resource.answer(asked(b'{"memory_mib": 2048, "cpus": 2}'), "agent")
    assert (answer.status, json.loads(answer.body)) == (200, {"memory_mib": 2048, "cpus": 2})
    await resource.answer(asked(b'{"cpus": 4}'), "agent")
    assert scaler.asked == [(2048, 2, Initiator.INSIDE), (None, 4, Initiator.INSIDE)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"2048",
        b"null",
        b'{"memory_mib": "2048"}',
        b'{"memory_mib": 2048.0}',
        b'{"memory_mib": true}',
        b'{"memory_mib": 0}',
        b'{"memory_mib": -1}',
        b'{"memory_mib": 1e3}',
        b'{"memory_mib": 99999999999999999999}',
        b'{"memory_mib": NaN}',
        b'{"memory_mib": null}',
        b'{"memory_mib": 1, "memory_mib": 2048}',
        b'{"memory_mib": 2048, "sandbox": "sbx_1"}',
        b'{"memoryMB": 2048}',
        b"\xff\xfe",
        b"[" * MAX_BODY,
    ],
)
async def test_what_is_no_size_is_refused(resource: ScaleResource, scaler: Scaler, body: bytes) -> None:
    """And spends nothing."""
    for _ in range(RATE.burst + 1):
        found = await refused(resource, body)
        assert (found.status, found.reason) == (400, "malformed")
    assert scaler.asked == []


async def test_a_tool_does_not_change_the_size(resource: ScaleResource, scaler: Scaler) -> None:
    """The machine is its harness's, too: shrinking it would be a way to hurt that."""
    found = await refused(resource, b'{"memory_mib": 512}', "tool")
    assert (found.status, found.reason) == (403, "scaling_locked") and scaler.asked == []


async def test_a_sandbox_of_one_size_says_so() -> None:
    """Whatever is asked for."""
    found = await refused(ScaleResource(None, "agent"), b'{"memory_mib": 512}')
    assert (found.status, found.reason) == (409, "not_elastic")


async def test_a_loop_is_slowed_down(resource: ScaleResource, scaler: Scaler, now: list[float]) -> None:
    """Each change is an audit record: six at once, then one in five seconds."""
    for _ in range(RATE.burst):
        await resource.answer(asked(b'{"cpus": 2}'), "agent")
    found = await refused(resource, b'{"cpus": 2}')
    assert (found.status, found.reason) == (429, "too_many_requests")
    assert found.headers == (("Retry-After", "6"),)
    now[0] += 5.0
    await resource.answer(asked(b'{"cpus": 2}'), "agent")
    assert len(scaler.asked) == RATE.burst + 1


@pytest.mark.parametrize(
    "problem",
    [
        SandboxProblem.NOT_ELASTIC,
        SandboxProblem.SCALING_LOCKED,
        SandboxProblem.BEYOND_LIMIT,
        SandboxProblem.OOM_FLOOR,
        SandboxProblem.NO_ROOM,
        SandboxProblem.NOT_RUNNING,
    ],
)
async def test_a_refusal_says_what_it_is(
    resource: ScaleResource, scaler: Scaler, problem: SandboxProblem
) -> None:
    """With what to do; but what the host has, and who else is on it, is not told inside."""
    scaler.refuses = SandboxRefused(problem, "4096 MiB are promised to others", "Raise COATCHECK_X.")
    found = await refused(resource, b'{"memory_mib": 2048}')
    assert (found.status, found.reason) == (problem.status, problem)
    assert ("COATCHECK_X" in str(found)) == (problem is not SandboxProblem.NO_ROOM)
