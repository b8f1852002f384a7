"""Suffixes under which strangers can register names: a wildcard there would trust all of them.

The list is the one of publicsuffix.org as publicsuffix2 ships it: old, but suffixes hardly ever go away.
"""

from enum import StrEnum
from functools import cache

from publicsuffix2 import PSL_FILE, PublicSuffixList  # type: ignore[import-untyped]

_PRIVATE = "// ===BEGIN PRIVATE DOMAINS==="


class SuffixKind(StrEnum):
    REGISTRY = "registry"
    """Anybody buys names here, as under `co.uk`."""
    SERVICE = "service"
    """Customers of one service get names here, as under `github.io` or `s3.amazonaws.com`."""


def public_suffix(suffix: str) -> SuffixKind | None:
    """Whether the canonical name `suffix` itself is a public suffix."""
    registries, all_suffixes = _lists()
    if registries.get_tld(suffix, strict=True) == suffix:
        return SuffixKind.REGISTRY
    return SuffixKind.SERVICE if all_suffixes.get_tld(suffix, strict=True) == suffix else None


@cache
def _lists() -> tuple[PublicSuffixList, PublicSuffixList]:
    with open(PSL_FILE, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return PublicSuffixList(lines[: lines.index(_PRIVATE)]), PublicSuffixList(lines)
