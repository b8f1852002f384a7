"""In the daemon: checks whether the host can give a sandbox what it is promised: its size now, and its
maximum."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from coatcheck.durable.elastic import Elastic
from coatcheck.durable.sandbox import Sandbox, WantedSandbox
from coatcheck.durable.scaling import range_of
from coatcheck.sandbox.limits import LimitError, LimitName, Limits, choose
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import (
    Backend,
    SandboxProblem,
    SandboxRefused,
    SandboxState,
)

SHARE: Final = 0.75
"""Of this machine's memory that sandboxes may be promised together, where no setting says how much."""
SPARE_MIB: Final = 128
"""What must be left of the memory that is free right now: a page cache that is squeezed to nothing makes the
whole machine wait for its disks."""
_TAKES_NOTHING: Final = frozenset({"sleeping", SandboxState.ENDED})
"""States in which it has no memory of the host's."""


def decide(wanted: WantedSandbox, ceiling: Limits) -> tuple[Limits, Elastic | None]:
    """Its limits, and how far it may grow. SandboxRefused for what is beyond the operator's ceilings."""
    try:
        limits = choose({LimitName(name): amount for name, amount in wanted.limits.items()}, ceiling)
    except LimitError as error:
        raise SandboxRefused(SandboxProblem.BEYOND_LIMIT, str(error), error.hint) from None
    check_volumes(wanted, ceiling)
    return limits, range_for(wanted, limits, ceiling)


def check_volumes(wanted: WantedSandbox, most: Limits) -> None:
    """They are on the disk that has our own state: what fills that stops the audit log, and so all."""
    disk_mib = most.resources.disk_mib
    for each in wanted.volumes:
        if each.size_mib > disk_mib:
            raise SandboxRefused(
                SandboxProblem.BEYOND_LIMIT,
                f"the volume {each.name} would have {each.size_mib} MiB; a disk has at most {disk_mib}",
                "Ask for less, or have COATCHECK_SANDBOX_MAX_DISK raised.",
            )


def range_for(wanted: WantedSandbox, limits: Limits, ceiling: Limits) -> Elastic | None:
    """How far a sandbox may grow that starts with `limits`; None: not at all. SandboxRefused."""
    if wanted.growth is None:
        return None
    if wanted.choice.backend is not Backend.MICROVM:
        raise SandboxRefused(
            SandboxProblem.NOT_ELASTIC,
            f"a sandbox of the {wanted.choice.backend} backend has one size",
            "Leave --max-memory and --max-cpus out, or ask for a microVM.",
        )
    start, most = limits.resources.size, ceiling.resources.size
    return range_of(start, wanted.growth, most)


def check_room(
    others: Iterable[Sandbox], sandbox: Sandbox, size: Size, total_mib: int | None, unclaimed_mib: int = 0
) -> None:
    """SandboxRefused when `sandbox` would grow to a `size` that this machine has promised to `others`, or
    does not have free. `total_mib`: the setting; `unclaimed_mib`: what the warm pool holds. Its words are for
    callers, and tell nothing of others."""
    more = size.memory_mib - sandbox.resources.memory_mib
    if more > 0 and not _is_free(others, size.memory_mib + unclaimed_mib, more, total_mib):
        raise SandboxRefused(
            SandboxProblem.NO_ROOM,
            f"this machine has no room for {more} MiB more",
            "Try again when other sandboxes have ended or shrunk; the operator's limit is"
            " COATCHECK_SANDBOX_TOTAL_MEMORY.",
        )


def too_many(message: str, setting: str) -> SandboxRefused:
    """`setting`: how the name of the one that says how many goes on."""
    return SandboxRefused(
        SandboxProblem.TOO_MANY_SANDBOXES,
        message,
        f"End one (`coatcheck sandbox rm`), or have COATCHECK_MAX_SANDBOXES{setting} raised.",
    )


def has_room(sandboxes: Iterable[Sandbox], unclaimed_mib: int, more: int, total_mib: int | None) -> bool:
    """Whether the warm pool may have `more` MiB beside what it holds, and beside all `sandboxes`."""
    return _is_free(sandboxes, unclaimed_mib + more, more, total_mib)


def _is_free(promised: Iterable[Sandbox], beside: int, more: int, total_mib: int | None) -> bool:
    """Whether `beside` MiB fit beside what is promised, and `more` of them can be had now."""
    whole, free = memory()
    taken = sum(each.resources.memory_mib for each in promised if each.state not in _TAKES_NOTHING)
    limit = total_mib if total_mib is not None else int(whole * SHARE)
    return taken + beside <= limit and free >= more + SPARE_MIB


def memory() -> tuple[int, int]:
    """This machine's memory and what of it could be had now, in MiB."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    said = {words[0]: int(words[1]) // 1024 for words in lines}
    return said["MemTotal:"], said["MemAvailable:"]
