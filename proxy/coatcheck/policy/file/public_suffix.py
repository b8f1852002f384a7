"""Suffixes under which strangers can register names: a wildcard there would trust all of them.

The list is the one of publicsuffix.org as the package publicsuffixlist ships it; `make lock` takes the
newest release. Hosting services come up every week, so `coatcheck doctor` warns when the list is old.
"""

import re
from datetime import date
from enum import StrEnum
from functools import cache
from pathlib import Path

from publicsuffixlist import PSLFILE, PublicSuffixList

_PRIVATE = "// ===BEGIN PRIVATE DOMAINS==="
_WRITTEN = re.compile(r"^// VERSION: (\d{4}-\d\d-\d\d)", re.MULTILINE)
UNLISTED = frozenset(
    {
        *("codesandbox.io", "github.dev", "gitpod.io", "lhr.life", "loca.lt", "modal.run"),
        *("r2.cloudflarestorage.com", "railway.app", "serveo.net", "stackblitz.io"),
    }
)
"""Services that give names to strangers and are not on the list. Agents are asked to send there."""


class SuffixKind(StrEnum):
    REGISTRY = "registry"
    """Anybody buys names here, as under `co.uk`."""
    SERVICE = "service"
    """Customers of one service get names here, as under `github.io` or `s3.amazonaws.com`."""


def public_suffix(suffix: str) -> SuffixKind | None:
    """Whether the canonical name `suffix` itself is a public suffix."""
    registries, all_suffixes = _lists()
    if registries.is_public(suffix):
        return SuffixKind.REGISTRY
    if suffix in UNLISTED or all_suffixes.is_public(suffix):
        return SuffixKind.SERVICE
    return None


def public_suffix_below(suffix: str) -> str | None:
    """A service's suffix below `suffix`, such as `s3.amazonaws.com` of `amazonaws.com`: the shortest."""
    end = "." + suffix
    return min(
        (name for name in _services() if name.endswith(end)), key=lambda name: (len(name), name), default=None
    )


def list_written() -> date | None:
    """The day of the installed list. None: it does not say."""
    match = _WRITTEN.search(_text())
    return date.fromisoformat(match[1]) if match else None


@cache
def _services() -> frozenset[str]:
    lines = [line.strip() for line in _text().partition(_PRIVATE)[2].splitlines()]
    names = (line.removeprefix("*.") for line in lines if line and not line.startswith(("//", "!")))
    return frozenset(name.encode("idna").decode() for name in names) | UNLISTED


@cache
def _lists() -> tuple[PublicSuffixList, PublicSuffixList]:
    # An unknown top-level domain is not a suffix: names such as `corp.internal` belong to one owner.
    text = _text()
    return (
        PublicSuffixList(text, accept_unknown=False, only_icann=True),
        PublicSuffixList(text, accept_unknown=False),
    )


def _text() -> str:
    return Path(PSLFILE).read_text(encoding="utf-8")
