"""What one sandbox may take of its host: defaults, ceilings, and the messages when a limit is reached."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from coatcheck.decision.ratelimit import Rate, take
from coatcheck.platform.errors import CoatcheckError
from coatcheck.sandbox.resources import Resources

if TYPE_CHECKING:
    from coatcheck.settings.daemon import Settings  # a supervisor has none, and need not load what reads them

MIB = 1024 * 1024
KERNEL_MIB = 96
"""For the guest's kernel, its page tables and its agent; a quarter, if that is less."""


class LimitName(StrEnum):
    """The words of the protocol and of the API; the command's option of each is in `OPTIONS`."""

    MEMORY = "memory"
    CPUS = "cpus"
    PROCESSES = "processes"
    DISK = "disk"
    OUTPUT = "output"
    NETWORK = "network"
    TIME = "time"


class LimitError(CoatcheckError, ValueError):
    """A limit that cannot be given. The message says why; `hint` what to ask for instead."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one sandbox; the defaults are those of one that asks for nothing."""

    resources: Resources = field(default_factory=Resources)
    output_bytes: int = 64 * MIB
    """Of one command: its client often keeps all of it in memory."""
    network_bytes_per_second: int = 64 * MIB
    """Both directions together: half a gigabit, so that one sandbox leaves the proxy to others."""
    run_seconds: int = 14_400
    """From its start; four hours, a third of a session's greatest age."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """How one limit is asked for, and said."""

    field: str
    option: str
    unit: str
    per_option: int
    """How many of the field's units are one of the option's."""
    least: int
    """In the field's unit. Below it nothing runs: saying so beats a sandbox that dies at its start."""
    what: str

    def of(self, limits: Limits) -> int:
        """The amount in the field's unit."""
        holder = limits.resources if hasattr(limits.resources, self.field) else limits
        value: int = getattr(holder, self.field)
        return value


_ASKING = {
    LimitName.MEMORY: _Asking("memory_mib", "--memory", "MiB", 1, 64, "memory"),
    LimitName.CPUS: _Asking("cpus", "--cpus", "CPUs", 1, 1, "CPUs"),
    LimitName.PROCESSES: _Asking("processes", "--processes", "processes", 1, 8, "processes at once"),
    LimitName.DISK: _Asking("disk_mib", "--disk", "MiB", 1, 16, "disk"),
    LimitName.OUTPUT: _Asking("output_bytes", "--output", "MiB", MIB, MIB, "output of one command"),
    LimitName.NETWORK: _Asking(
        "network_bytes_per_second", "--network", "MiB a second", MIB, MIB, "network traffic"
    ),
    LimitName.TIME: _Asking("run_seconds", "--timeout", "seconds", 1, 1, "run time"),
}

OPTIONS: Mapping[LimitName, str] = {name: asking.option for name, asking in _ASKING.items()}
"""Of `coatcheck sandbox run`, each in the unit that `choose` takes."""

_HAPPENED = {
    LimitName.MEMORY: "it needed more memory than the {amount} that this sandbox has, and was killed",
    LimitName.CPUS: "it has {amount}, and waits for its turn beyond that",
    LimitName.PROCESSES: "it wanted more than the {amount} that this sandbox may have at once",
    LimitName.DISK: "it wrote more than the {amount} of disk that this sandbox has",
    LimitName.OUTPUT: "it wrote more than {amount} of output, and was killed",
    LimitName.NETWORK: "its traffic is held to {amount}",
    LimitName.TIME: "it ran for the {amount} that this sandbox may run, and was ended",
}


def ceilings(settings: "Settings") -> Limits:
    """The most that any sandbox of this host gets."""
    return Limits(
        resources=Resources(
            memory_mib=settings.sandbox_max_memory,
            cpus=settings.sandbox_max_cpus,
            disk_mib=settings.sandbox_max_disk,
            processes=settings.sandbox_max_processes,
        ),
        output_bytes=settings.sandbox_max_output * MIB,
        network_bytes_per_second=settings.sandbox_max_network * MIB,
        run_seconds=settings.sandbox_max_run,
    )


def choose(asked: Mapping[LimitName, int], ceiling: Limits) -> Limits:
    """The limits of a sandbox: what was `asked` for in the options' units, else the default.

    A default above the ceiling is the ceiling. LimitError for what is too little to run, or above it.
    """
    defaults = Limits()
    chosen = {asking.field: min(asking.of(defaults), asking.of(ceiling)) for asking in _ASKING.values()}
    for name, amount in asked.items():
        asking = _ASKING[name]
        wanted, most = amount * asking.per_option, asking.of(ceiling)
        if wanted < asking.least:
            raise LimitError(
                f"{_amount(asking, wanted)} is too little {asking.what}",
                f"ask for at least {asking.option} {asking.least // asking.per_option}",
            )
        if wanted > most:
            raise LimitError(
                f"{_amount(asking, wanted)} is more {asking.what} than a sandbox gets here",
                f"ask for at most {asking.option} {most // asking.per_option}, or have the operator raise"
                f" COATCHECK_SANDBOX_MAX_{_setting(name)}",
            )
        chosen[asking.field] = wanted
    built = {each.name: chosen.pop(each.name) for each in fields(Resources)}
    return Limits(Resources(**built), **chosen)


def said(limits: Limits) -> dict[str, Any]:
    """As JSON says them where people read it: on one level."""
    flat = asdict(limits)
    return {**flat.pop("resources"), **flat}


def for_commands(memory_mib: int) -> int:
    """Bytes that a guest's commands may use together, out of all that it has.

    A hog must run into this limit, which can be told, before the kernel runs out and kills whom it likes.
    """
    return (memory_mib - min(KERNEL_MIB, memory_mib // 4)) * MIB


def explain(name: LimitName, limits: Limits, ceiling: Limits) -> tuple[str, str]:
    """The message when limit `name` is reached: what happened, and how to have more of it."""
    asking = _ASKING[name]
    have, most = asking.of(limits), asking.of(ceiling)
    happened = _HAPPENED[name].format(amount=_amount(asking, have))
    if have >= most:
        setting = f"COATCHECK_SANDBOX_MAX_{_setting(name)}"
        return happened, f"that is the most a sandbox gets here; the operator may raise {setting}"
    more = min(have * 2, most) // asking.per_option
    return happened, f"run it in a sandbox with more: {asking.option} {more}" + (
        f" (up to {most // asking.per_option})" if most > have * 2 else ""
    )


def _setting(name: LimitName) -> str:
    return "RUN" if name is LimitName.TIME else name.value.upper()


def _amount(asking: _Asking, value: int) -> str:
    count = value / asking.per_option
    unit = asking.unit.removesuffix("s") if count == 1 and asking.unit in {"CPUs", "seconds"} else asking.unit
    return f"{count:g} {unit}"


class TokenBucket:
    """A rate of bytes that may be exceeded for `burst_seconds`; then the sender waits.

    It goes into debt by the one piece that was sent, and says how long that is to be waited for: pieces
    are never cut, and nobody's bytes queue here.
    """

    __slots__ = ("_now", "_rate", "_tat")

    def __init__(self, bytes_per_second: int, burst_seconds: float = 0.25) -> None:
        self._rate = Rate(bytes_per_second, 1.0, int(bytes_per_second * burst_seconds))
        self._tat = self._now = 0.0

    def delay(self, count: int, now: float) -> float:
        """Seconds to wait after these `count` bytes; 0 while the rate is kept. `now`: a monotonic clock."""
        self._now = max(self._now, now)
        self._tat, early = take(self._rate, self._tat, self._now, count)
        return max(0.0, early)


class OutputBound:
    """How much of a command's output may still pass."""

    __slots__ = ("_left", "exceeded")

    def __init__(self, limit: int) -> None:
        self._left = limit
        self.exceeded = False
        """There was more than the limit: the command is to be killed, and told so."""

    def allow(self, count: int) -> int:
        """How many of the next `count` bytes may pass."""
        allowed = min(count, self._left)
        self._left -= allowed
        self.exceeded = self.exceeded or allowed < count
        return allowed
