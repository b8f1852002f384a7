"""How `inject` is written in a policy file: the types of its values, and what each way says of its keys.

One text -> one value, or `Wrong`: what is the matter and what to write instead. The rest of a policy file
builds on these (`policy.file.fields`, `policy.file.models`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from coatcheck.decision.injection import Injector

SECRET = "{secret}"
MAX_COUNT = 1 << 53
"""Above this, floating point arithmetic on counts loses units."""
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SIZE = re.compile(r"([1-9][0-9]{0,15})(B|KiB|MiB|GiB|TiB)")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_PREFIX = re.compile(r"[A-Za-z0-9_.~-]{1,32}")
_WORD = re.compile(r"[A-Za-z0-9_.~-]{1,64}")

_FRAMING = ("content-length", "transfer-encoding", "content-encoding", "content-type")
_HOP_BY_HOP = ("connection", "keep-alive", "te", "trailer", "upgrade", "expect", "http2-settings")
_NEVER = {
    "host": "it decides where the request goes",
    "cookie": "it holds many values of many owners, and a template describes a whole header",
    "set-cookie": "it belongs to responses",
    "forwarded": "servers trust it for addresses",
    "via": "servers trust it for addresses",
    "range": "a partial answer could hide an echo of the secret",
    "if-range": "a partial answer could hide an echo of the secret",
    **dict.fromkeys(_FRAMING, "it frames the body"),
    **dict.fromkeys(_HOP_BY_HOP, "it belongs to the connection"),
}
_NEVER_PREFIXES = {
    "proxy-": "it is for proxies, not for the upstream",
    "x-forwarded-": "servers trust it for addresses",
    "coatcheck-": "it is ours",
    "sec-": "browsers own it",
}


class Wrong(ValueError):
    """One value is not what it should be."""

    def __init__(self, message: str, instead: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.instead = instead


def closest(word: str, known: tuple[str, ...] | list[str]) -> str:
    """`write "known"` for the known word that `word` looks like, else the list of them."""
    near = get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    for name in known:
        if near and name.lower() == near[0]:
            return f'write "{name}"'
    return "write one of: " + ", ".join(known)


def header_name(text: str) -> str:
    """A header that a secret may be put into; lower-case, as the core compares them."""
    lower = text.lower()
    if not _TOKEN.fullmatch(text):
        raise Wrong(f'"{text}" is not a header name', "write a name such as Authorization or X-Api-Key")
    why = _NEVER.get(lower) or next(
        (why for start, why in _NEVER_PREFIXES.items() if lower.startswith(start)), None
    )
    if why:
        raise Wrong(
            f"{text} cannot carry a secret: {why}",
            "write the header that the API documents, such as Authorization",
        )
    return lower


def template(text: str, mark: str = SECRET) -> str:
    """A header's value in which `mark` stands for what is put in, once."""
    if any(sign in text for sign in "\r\n\0"):
        raise Wrong(
            "a line break in a header's value would begin another header",
            f'write "Bearer {mark}" on one line',
        )
    if not (text.isascii() and text.isprintable()) or text != text.strip():
        raise Wrong(
            "a header's value is printable ASCII without space around it", f'write it like "Bearer {mark}"'
        )
    rest = text.replace(mark, "", 1)
    if mark not in text or "{" in rest or "}" in rest:
        raise Wrong(
            f"the value needs {mark} exactly once and no other braces", f'write it like "Bearer {mark}"'
        )
    return text


def handle_prefix(text: str) -> str:
    """What clients check that a key begins with, e.g. `sk-ant-`."""
    if not _PREFIX.fullmatch(text):
        raise Wrong("this cannot begin a handle", "write 1 to 32 of A-Z, a-z, 0-9 and -_.~, such as sk-ant-")
    return text


def path_prefix(text: str) -> str:
    """What stands before the handle in its path segment, e.g. `bot`."""
    return handle_prefix(text) if text else text


def parameter(text: str) -> str:
    """The name of a query parameter, a SigV4 service or region: unreserved characters only."""
    if not _WORD.fullmatch(text):
        raise Wrong(f'"{text}" is not a plain name', "write 1 to 64 of A-Z, a-z, 0-9 and -_.~")
    return text


def one_token(text: str) -> str:
    """Printable ASCII without space or colon: a user name of Basic (RFC 7617 forbids the colon)."""
    if not text or len(text) > 128 or not (text.isascii() and text.isprintable()) or set(' :"') & set(text):
        raise Wrong(
            f'"{text}" is not allowed here',
            "write up to 128 printable ASCII characters without space, quote or colon",
        )
    return text


def size(text: str) -> int:
    """Bytes."""
    found = SIZE.fullmatch(text)
    value = int(found[1]) * UNITS[found[2]] if found else 0
    if not 0 < value <= MAX_COUNT:
        raise Wrong(
            f'"{text}" is not a size', "write a whole number and B, KiB, MiB, GiB or TiB, such as 10MiB"
        )
    return value


# --- types of fields -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromText:
    """A field that is written as text and parsed by `parse`, which raises Wrong."""

    parse: Callable[[str], object]
    example: str
    others: tuple[str, ...] = ()
    """More of them, for editors to suggest."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "examples": [self.example, *self.others]}

    def _validate(self, value: object) -> object:
        try:
            if not isinstance(value, str):
                raise Wrong("text is needed here", f'write it in quotes, such as "{self.example}"')
            return self.parse(value)
        except Wrong as wrong:
            context = {"message": wrong.message, "instead": wrong.instead}
            raise PydanticCustomError("wrong", "{message}", context) from None


@dataclass(frozen=True, slots=True)
class OneOf:
    """A field that is one word of a closed set."""

    words: type[StrEnum]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"enum": [word.value for word in self.words]}

    def _validate(self, value: object) -> object:
        for word in self.words:
            if value == word.value:
                return word
        context = {
            "message": f'"{value}" is not a known word',
            "instead": closest(str(value), tuple(self.words)),
        }
        raise PydanticCustomError("wrong", "{message}", context)


class Strict(BaseModel):
    """Unknown keys are errors, nothing is converted, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


type HeaderName = Annotated[str, FromText(header_name, "Authorization")]
type Template = Annotated[str, FromText(template, "Bearer {secret}")]
type Prefix = Annotated[str, FromText(handle_prefix, "sk-ant-")]
type PathPrefix = Annotated[str, FromText(path_prefix, "bot")]
type Parameter = Annotated[str, FromText(parameter, "key")]
type Token = Annotated[str, FromText(one_token, "x-access-token")]
type Size = Annotated[int, FromText(size, "10MiB")]


@dataclass(frozen=True, slots=True)
class Way:
    """What a policy file may write below `inject` for one way to inject a secret."""

    keys: Mapping[str, tuple[Any, str]]
    """Type and description of each key beside which no other way's may stand. The first names the way, the
    others describe it further."""
    build: Callable[[Mapping[str, Any]], Injector]
    """From the values of `keys`, None where one is not written."""
    parts: Mapping[str, type[BaseModel]] = field(default_factory=dict)
    """The models below the keys, by the key that leads to each."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """What to write, by key, where something else or nothing was written."""
    snippets: tuple[dict[str, Any], ...] = ()
    """What editors offer: label, description and body, as VS Code's JSON language service has them."""

    @property
    def key(self) -> str:
        return next(iter(self.keys))
