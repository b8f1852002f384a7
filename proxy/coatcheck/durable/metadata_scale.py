"""In the supervisor: serves `/v1/scale` of the metadata service: a program inside asks for another size."""

import json
import time
from collections.abc import Callable
from typing import Any, Final

from coatcheck.decision.ratelimit import Rate, Rates
from coatcheck.durable.elastic import Initiator
from coatcheck.durable.elasticity import Elasticity
from coatcheck.metadata.http import Answer, MetadataRequest, Refused
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused

SCALE: Final = "/v1/scale"
RATE: Final = Rate(count=12, period=60.0, burst=6)
"""Each change is one line in the audit log and minutes of work for nobody; a build asks twice."""
MOST: Final = 1 << 31
"""MiB. Beyond it is no size of anything."""


class ScaleResource:
    """Of one sandbox. Belongs to the supervisor's event loop."""

    def __init__(
        self, scaler: Elasticity | None, owner: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`owner`: the identity that may; the others are its tools, and the machine is not theirs."""
        self._scaler = scaler
        self._owner = owner
        self._clock = clock
        self._rates: Rates[str] = Rates(RATE, 1)

    async def answer(self, request: MetadataRequest, identity: str) -> Answer:
        """The size that it has from now on. Refused when it cannot have it."""
        memory_mib, cpus = _read(request.body)
        if identity != self._owner:
            raise Refused(403, "scaling_locked", f"only the identity {self._owner} may change the size")
        if self._scaler is None:
            raise Refused(409, "not_elastic", "this sandbox has one size")
        if wait := self._rates.wait(identity, self._clock()):
            seconds = int(wait) + 1
            raise Refused(
                429, "too_many_requests", "wait before the next change", ("Retry-After", str(seconds))
            )
        try:
            size = await self._scaler.scale(memory_mib, cpus, Initiator.INSIDE)
        except SandboxRefused as error:
            raise _refused(error) from None
        return Answer(200, json.dumps({"memory_mib": size.memory_mib, "cpus": size.cpus}).encode())


def _refused(error: SandboxRefused) -> Refused:
    status = error.problem.status
    if error.problem is SandboxProblem.NO_ROOM:  # its hint is for the host's operator
        return Refused(status, error.problem, "there is no room for this now", ("Retry-After", "60"))
    return Refused(status, error.problem, f"{error.message}. {error.hint}")


def _read(body: bytes) -> tuple[int | None, int | None]:
    """`{"memory_mib": …, "cpus": …}`, either or both, and nothing else."""
    try:
        given: Any = json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not given or not given.keys() <= {"memory_mib", "cpus"}:
        raise Refused(400, "malformed", 'send {"memory_mib": 2048, "cpus": 2}, or one of the two')
    for value in given.values():
        if type(value) is not int or not 0 < value < MOST:  # not `True`
            raise Refused(400, "malformed", "memory_mib and cpus are whole numbers above 0")
    return given.get("memory_mib"), given.get("cpus")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found
