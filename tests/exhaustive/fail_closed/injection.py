"""Makes one place of the request path fail, in the running process: the code of its function is swapped."""

import asyncio
import builtins
import gc
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from tests.exhaustive.fail_closed.sites import Instrumented, Kind, Site, instrumented


class Fault(StrEnum):
    """What happens at a place, in place of what should."""

    RAISES = "raises"
    TIMES_OUT = "raises TimeoutError"
    """Which is an OSError: what expects those must not take it for one of its own."""
    HANGS = "hangs"
    CANCELLED = "is cancelled"
    NONSENSE = "answers nonsense"


FAULTS = {
    Kind.AWAIT: (Fault.RAISES, Fault.TIMES_OUT, Fault.CANCELLED, Fault.HANGS),
    Kind.USED_AWAIT: (Fault.RAISES, Fault.TIMES_OUT, Fault.CANCELLED, Fault.HANGS, Fault.NONSENSE),
    Kind.ENTER: (Fault.RAISES, Fault.TIMES_OUT, Fault.HANGS),
    Kind.LEAVE: (Fault.RAISES, Fault.TIMES_OUT, Fault.HANGS),
    Kind.BOUND: (Fault.RAISES, Fault.TIMES_OUT),
    # A function that waits for nothing cannot time out: what would hang is the processor.
    Kind.CALL: (Fault.RAISES,),
    Kind.USED_CALL: (Fault.RAISES, Fault.NONSENSE),
    Kind.HOOK: (Fault.RAISES, Fault.TIMES_OUT, Fault.NONSENSE),
    Kind.MUTE_HOOK: (Fault.RAISES, Fault.TIMES_OUT),
    Kind.HANDLER: (Fault.RAISES, Fault.TIMES_OUT, Fault.HANGS, Fault.NONSENSE),
}


class Injected(Exception):
    """Nobody expects it."""


class Nonsense:
    """Of no type that anybody asked for."""

    __slots__ = ()


@dataclass
class Faults:
    """The places, and the one that is made to fail, once, from when it is armed."""

    sites: list[Site]
    reached: dict[int, int] = field(default_factory=dict)
    """When each place was passed last since the last `clear`; a place that fails was not."""
    fired: asyncio.Event = field(default_factory=asyncio.Event)
    on_fire: Callable[[], None] = lambda: None
    """Called right before the place fails."""
    _armed: tuple[int, Fault] | None = None
    _count: int = 0

    def named(self, text: str) -> set[int]:
        """The places whose names hold `text`; there must be one."""
        found = {number for number, site in enumerate(self.sites) if text in str(site)}
        assert found, f"no place is called {text}: say what it is called now"
        return found

    def clear(self) -> None:
        self.reached.clear()
        self.fired = asyncio.Event()
        self._armed = None

    def arm(self, site: int, fault: Fault) -> None:
        self._armed = (site, fault)

    def disarm(self) -> None:
        self._armed = None

    def at(self, site: int) -> Fault | None:
        if self._armed is None or self._armed[0] != site:
            self._count += 1
            self.reached[site] = self._count
            return None
        fault = self._armed[1]
        self._armed = None
        self.on_fire()
        self.fired.set()
        return fault

    # --- what rewritten code calls ------------------------------------------------------------------

    async def at_await(self, site: int, awaitable: Awaitable[object]) -> object:
        fault = self.at(site)
        if fault is None:
            return await awaitable
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        elif isinstance(awaitable, asyncio.Task):
            awaitable.cancel()
        return await _fail(fault)

    def at_within(self, enter: int, leave: int, manager: Any) -> "_Within":
        return _Within(self, enter, leave, manager)

    def at_call(self, site: int, function: Callable[..., object], *args: object, **named: object) -> object:
        fault = self.at(site)
        return function(*args, **named) if fault is None else _fail_now(fault)

    def at_hook(self, site: int) -> tuple[object] | None:
        fault = self.at(site)
        if fault is Fault.HANGS:
            return (partial(_fail, fault),)
        return None if fault is None else (_fail_now(fault),)


@dataclass
class _Within:
    faults: Faults
    enter: int
    leave: int
    manager: Any

    async def __aenter__(self) -> object:
        fault = self.faults.at(self.enter)
        return await self.manager.__aenter__() if fault is None else await _fail(fault)

    async def __aexit__(self, *raised: object) -> object:
        answer: object = await self.manager.__aexit__(*raised)
        fault = self.faults.at(self.leave)
        return answer if fault is None else await _fail(fault)


async def _fail(fault: Fault) -> object:
    if fault is Fault.CANCELLED:
        raise asyncio.CancelledError
    if fault is Fault.HANGS:
        await asyncio.get_running_loop().create_future()
    return _fail_now(fault)


def _fail_now(fault: Fault) -> object:
    if fault is Fault.RAISES:
        raise Injected("injected")
    if fault is Fault.TIMES_OUT:
        raise TimeoutError("injected")
    assert fault is Fault.NONSENSE
    return Nonsense()


# --- swapping code ----------------------------------------------------------------------------------


@contextmanager
def faults_in_the_path() -> Iterator[Faults]:
    """Every place of the path asks the yielded Faults; at the end the path is as it was."""
    modules = instrumented()
    faults = Faults([site for each in modules for site in each.sites])
    probes = {
        "__fault_await__": faults.at_await,
        "__fault_within__": faults.at_within,
        "__fault_call__": faults.at_call,
        "__fault_hook__": faults.at_hook,
    }
    swapped = _swap(modules)
    vars(builtins).update(probes)
    try:
        yield faults
    finally:
        for function, code in swapped:
            function.__code__ = code
        for name in probes:
            vars(builtins).pop(name)


def _swap(modules: list[Instrumented]) -> list[tuple[FunctionType, CodeType]]:
    """Give every function of the modules that exists its rewritten code; what they had."""
    rewritten: dict[tuple[str, str, int], CodeType] = {}
    for each in modules:
        file = inspect.getfile(each.module)
        for code in _codes(compile(each.tree, file, "exec", dont_inherit=True)):
            rewritten[file, code.co_qualname, code.co_firstlineno] = code
    gc.unfreeze()  # a daemon that started here took what stood then out of the collector's sight
    swapped: list[tuple[FunctionType, CodeType]] = []
    for function in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
        old = function.__code__
        new = rewritten.get((old.co_filename, old.co_qualname, old.co_firstlineno))
        if new is not None:
            function.__code__ = new
            swapped.append((function, old))
    return swapped


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
