"""`{handle:vendor|base64}` in a case's text: a kind, which value, and what is done to it. Anything else in
braces stays as it is (JSON bodies), and so does a kind that nobody knows."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from tests.corpus.proxies import Inside

_PLACE: Final = re.compile(r"\{([a-z_]+):([^{}|]*)((?:\|[^{}|]*)*)\}")

type Kind = Callable[[Inside, str, Mapping[str, str]], str]
"""(sandbox, what stands after the colon, secrets by credential) -> text, latin-1."""
type Filter = Callable[[str, str], str]
"""(text, argument) -> text."""

KINDS: Final[dict[str, Kind]] = {
    "handle": lambda inside, name, _: inside.handles[name],
    "foreign": lambda inside, name, _: inside.foreign[name],
    "kin": lambda inside, name, _: inside.kin[name],
    "secret": lambda _, name, secrets: secrets[name],
    "session": lambda inside, _, __: inside.session,
    "port": lambda inside, _, __: str(inside.address[1]),
}
FILTERS: Final[dict[str, Filter]] = {}
"""handles.py adds the rest of both."""


def expander(inside: Inside, secrets: Mapping[str, str]) -> Callable[[str], bytes]:
    """Text of a case -> bytes, for one sandbox."""

    def value(match: re.Match[str]) -> str:
        kind, name, filters = match.groups()
        if kind not in KINDS:
            return match.group()
        text = KINDS[kind](inside, name, secrets)
        for each in filters.split("|")[1:]:
            word, _, argument = each.partition(":")
            text = FILTERS[word](text, argument)
        return text

    return lambda text: _PLACE.sub(value, text).encode("latin-1")
