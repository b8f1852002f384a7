"""Suffixes under which strangers can register names: a wildcard there would trust all of them.

The list is the one of publicsuffix.org as publicsuffix2 ships it: old, but suffixes hardly ever go away.
"""

from enum import StrEnum
from functools import cache

from publicsuffix2 import PSL_FILE, PublicSuffixList  # type: ignore[import-untyped]

_PRIVATE = "// ===BEGIN PRIVATE DOMAINS==="
_NEWER = (
    *("deno.dev", "fly.dev", "pages.dev", "r2.dev", "workers.dev", "web.app", "vercel.app", "netlify.app"),
    *("onrender.com", "railway.app", "up.railway.app", "supabase.co", "trycloudflare.com", "replit.app"),
    *("repl.co", "hf.space", "modal.run", "lhr.life", "loca.lt", "serveo.net", "streamlit.app"),
    *("ngrok.app", "ngrok.dev", "ngrok.io", "ngrok-free.app", "ngrok-free.dev", "gitpod.io", "stackblitz.io"),
    *("azurewebsites.net", "azurestaticapps.net", "trafficmanager.net", "github.dev", "codesandbox.io"),
    *("r2.cloudflarestorage.com", "blob.core.windows.net", "digitaloceanspaces.com", "run.app"),
)
"""Services that have come up, or opened, since that copy of the list: agents are asked to send there."""


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
    if suffix in _NEWER:
        return SuffixKind.SERVICE
    return SuffixKind.SERVICE if all_suffixes.get_tld(suffix, strict=True) == suffix else None


def public_suffix_below(suffix: str) -> str | None:
    """A service's suffix below `suffix`, such as `s3.amazonaws.com` of `amazonaws.com`: the shortest."""
    end = "." + suffix
    return min(
        (name for name in _services() if name.endswith(end)), key=lambda name: (len(name), name), default=None
    )


@cache
def _services() -> frozenset[str]:
    with open(PSL_FILE, encoding="utf-8") as file:
        lines = [line.strip() for line in file.read().partition(_PRIVATE)[2].splitlines()]
    names = (line.removeprefix("*.") for line in lines if line and not line.startswith(("//", "!")))
    return frozenset(names) | set(_NEWER)


@cache
def _lists() -> tuple[PublicSuffixList, PublicSuffixList]:
    with open(PSL_FILE, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return PublicSuffixList(lines[: lines.index(_PRIVATE)]), PublicSuffixList(lines)
