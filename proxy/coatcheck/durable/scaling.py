"""In daemon and supervisor: decides whether a requested size is allowed: by its range, its maker's
settings and what is in use."""

from coatcheck.durable.elastic import (
    Elastic,
    Growth,
    Initiator,
    Scaling,
)
from coatcheck.sandbox.resources import Size
from coatcheck.sandbox.sandbox import SandboxProblem, SandboxRefused

CEILING_TO_FLOOR = 16
"""A guest's kernel keeps 16 MiB of tables for each GiB that it could have, out of what it has now: beyond
this ratio more than a quarter of the floor would be tables."""
SPARE_MIB = 32
"""What must stay free above what is in use, or a guest that is shrunk ends its largest program at once."""
SPARE_PART = 8
"""And not less than this part of it: what is in use moves while it is being measured."""


def wanted(
    elastic: Elastic | None, now: Size, memory_mib: int | None, cpus: int | None, by: Initiator
) -> Size:
    """The size that is asked for; what is left out stays. SandboxRefused when the range does not have it."""
    if elastic is None:
        raise SandboxRefused(
            SandboxProblem.NOT_ELASTIC,
            "this sandbox has one size",
            "Create it with --max-memory or --max-cpus (max_memory_mib, max_cpus), as a microVM.",
        )
    if by is Initiator.INSIDE and elastic.scaling is not Scaling.INSIDE:
        raise SandboxRefused(
            SandboxProblem.SCALING_LOCKED,
            "this sandbox's size is not changed from inside",
            "Ask the operator of the sandbox: coatcheck sandbox scale.",
        )
    asked = Size(now.memory_mib if memory_mib is None else memory_mib, now.cpus if cpus is None else cpus)
    for amount, least, most, what in (
        (asked.memory_mib, elastic.min_memory_mib, elastic.max_memory_mib, "MiB of memory"),
        (asked.cpus, elastic.min_cpus, elastic.max_cpus, "CPUs"),
    ):
        if not least <= amount <= most:
            raise SandboxRefused(
                SandboxProblem.BEYOND_LIMIT,
                f"{amount} {what} is outside of this sandbox's range, {least} to {most}",
                f"Ask for {least} to {most}; the range is fixed when a sandbox is created.",
            )
    return asked


def check_in_use(asked: Size, now: Size, used_mib: int | None) -> None:
    """SandboxRefused for less memory than is in use. `used_mib`: None where nothing says how much that is."""
    if asked.memory_mib >= now.memory_mib:
        return
    if used_mib is None:
        raise SandboxRefused(
            SandboxProblem.OOM_FLOOR,
            "how much memory is in use is not known, so none can be taken away",
            "Try again in a few seconds; if it stays so, its kernel has no balloon driver any more.",
        )
    least = used_mib + max(SPARE_MIB, used_mib // SPARE_PART)
    if asked.memory_mib < least:
        raise SandboxRefused(
            SandboxProblem.OOM_FLOOR,
            f"{used_mib} MiB of memory are in use, so it cannot shrink to {asked.memory_mib} MiB",
            f"Ask for at least {least} MiB, or end something in it first.",
        )


def range_of(start: Size, growth: Growth, most: Size) -> Elastic:
    """The range of a sandbox that starts with `start`; `most`: what the operator lets any of them have.

    SandboxRefused for a ceiling above that, below the start, or too far above it.
    """
    ceiling = Size(growth.max_memory_mib or start.memory_mib, growth.max_cpus or start.cpus)
    if ceiling.memory_mib > most.memory_mib or ceiling.cpus > most.cpus:
        raise SandboxRefused(
            SandboxProblem.BEYOND_LIMIT,
            f"it could grow to {_said(ceiling)}; a sandbox has {_said(most)} at most here",
            "Ask for less, or have COATCHECK_SANDBOX_MAX_MEMORY or COATCHECK_SANDBOX_MAX_CPUS raised.",
        )
    if ceiling.memory_mib < start.memory_mib or ceiling.cpus < start.cpus:
        raise SandboxRefused(
            SandboxProblem.BEYOND_LIMIT,
            f"it would start with {_said(start)}, above its own ceiling of {_said(ceiling)}",
            "Raise --max-memory and --max-cpus, or start with less.",
        )
    if ceiling.memory_mib > start.memory_mib * CEILING_TO_FLOOR:
        raise SandboxRefused(
            SandboxProblem.BEYOND_LIMIT,
            f"{ceiling.memory_mib} MiB is more than {CEILING_TO_FLOOR} times the {start.memory_mib} MiB that"
            " it starts with, and a guest's kernel keeps tables for all of it from its start",
            f"Start with --memory {-(-ceiling.memory_mib // CEILING_TO_FLOOR)} or more.",
        )
    return Elastic(
        start.memory_mib, ceiling.memory_mib, start.cpus, ceiling.cpus, growth.scaling, growth.autoscale
    )


def _said(size: Size) -> str:
    return f"{size.memory_mib} MiB and {size.cpus} CPU{'' if size.cpus == 1 else 's'}"
