"""What only shows when the places of a policy's `filesystem` are seen together."""

from collections.abc import Iterator

from coatcheck.policy.file.models import FilesystemSpec
from coatcheck.policy.file.problem import Finding, Location

_NEVER_WRITTEN = ("/proc", "/sys", "/dev", "/run/coatcheck")
"""The kernel's, and the agent's own: what it trusts and how it reaches the host."""
_NEEDED = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/dev", "/run/coatcheck")
"""Without reading these no command starts, or none trusts the proxy."""


def review_filesystem(spec: FilesystemSpec) -> Iterator[Finding]:
    """Every finding about `spec`; all are errors."""
    for key, places in (("allow_write", spec.allow_write), ("deny_read", spec.deny_read)):
        for index, place in enumerate(places):
            if place in places[:index]:
                yield Finding(_at(key, index), f"{place} is listed twice", "remove one of them")
    for index, place in enumerate(spec.allow_write):
        yield from _written(index, place, spec.deny_read)
    for index, place in enumerate(spec.deny_read):
        hidden = next((needed for needed in _NEEDED if within(needed, place)), None)
        if hidden:
            message = f"without reading {hidden} no command runs"
            yield Finding(_at("deny_read", index), message, "deny only the paths to hide")


def _written(index: int, place: str, denied: list[str]) -> Iterator[Finding]:
    at = _at("allow_write", index)
    if place == "/":
        yield Finding(at, "that allows everything", "write each directory, or leave filesystem out")
        return
    for own in _NEVER_WRITTEN:
        if within(place, own) or within(own, place):
            yield Finding(at, f"{own} is never the sandbox's to write", "remove it")
    if any(within(place, hidden) for hidden in denied):
        yield Finding(at, f"{place} may be written but not read", "remove it from one of the lists")


def within(place: str, other: str) -> bool:
    """Whether `place` is `other`, or below it."""
    return place == other or other == "/" or place.startswith(other + "/")


def _at(key: str, index: int) -> Location:
    return ("filesystem", key, index)
