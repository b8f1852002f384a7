"""Addresses that an operator writes, or a provider sends: read in one way, or not at all (I7)."""

from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, urlsplit

WEB: Final = ("http", "https")


def split_url(text: str) -> SplitResult | None:
    """Its parts; None for what other parsers, a browser's above all, may read otherwise or not at all.

    `urlsplit` drops tabs and line ends without a word, and finds a bad port only when that is looked at.
    """
    if not (text.isascii() and text.isprintable()) or " " in text or "\\" in text:
        return None
    try:
        parts = urlsplit(text)
        return parts if parts.port != 0 else None
    except ValueError:  # a port or brackets that are none
        return None


def is_web_url(text: str, schemes: Collection[str] = WEB) -> bool:
    """Whether it names a host over one of these schemes, without a user or a fragment."""
    parts = split_url(text)
    if parts is None or parts.scheme not in schemes:
        return False
    return bool(parts.hostname) and parts.username is None and "#" not in text
