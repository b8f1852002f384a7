"""Where handles stand in a request: every one in its head, and those that pass in a streamed body.

A handle counts only where its credential is declared; anywhere else in a head it is an alarm (I4), so
`find` looks everywhere: header names and values, the target, Basic's decoded user and password, and
behind two rounds of percent-encoding. Nearly all requests carry none, so that case costs one join and
one search. An agent that encrypts or splits its own handle is out of reach, and gains nothing by it:
the string has no authority elsewhere.
"""

import binascii
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final
from urllib.parse import unquote

from coatcheck.decision.handle import BASE64URL, MAX_CHARS, PREFIX
from coatcheck.decision.message import RequestHead
from coatcheck.decision.policy import (
    BasicInjection,
    BodyInjection,
    Credential,
    HeaderInjection,
    PathInjection,
    QueryInjection,
    Shape,
    SigV4Injection,
)
from coatcheck.decision.verdict import Location

MARK: Final = "cch_eyJ"
"""How every handle begins: our prefix and the base64url of `{"`. `cch_` alone could be anybody's word."""
MAX_FOUND: Final = 32
"""`find` stops here: more than any rule has credentials, so what is past it changes no verdict."""
PERCENT_ROUNDS: Final = 2
_FOLDED: Final = MARK.lower()
_RUN: Final = BASE64URL + "."
_ALNUM: Final = BASE64URL[:62]
_MASKED: Final = "***"

type Known = Callable[[str], bool]
"""Whether a text of a reference's shape is a reference that we issued."""


@dataclass(frozen=True, slots=True)
class Found:
    """One handle in a head: `before + text + after` is the whole value that it stands in."""

    location: Location
    name: str
    """The header's or query parameter's name as received; empty for a path segment."""
    before: str = field(repr=False)
    text: str = field(repr=False)
    """The bare handle, without a shape's prefix; a reference handle with it. Ask `claims_of` about it."""
    after: str = field(repr=False)
    decoded: bool = False
    """True when it was hidden behind percent-encoding, where no credential is declared."""


def never(_: str) -> bool:
    """A `Known` for when no references were issued."""
    return False


def find(head: RequestHead, references: tuple[Shape, ...] = (), known: Known = never) -> tuple[Found, ...]:
    """Every handle in a head, at most MAX_FOUND.

    `references` are the shapes (with a length) of all issued references, whatever session they are for:
    a stolen one must be seen too. A text of such a shape that is not `known` is not a handle.
    """
    if not _suspect("\n".join(chain((head.target,), *head.headers)), references):
        return ()
    found: list[Found] = []
    for item in _everywhere(head, references, known):
        found.append(item)
        if len(found) == MAX_FOUND:
            break
    return tuple(found)


def stands_at(found: Found, credential: Credential) -> bool:
    """Whether a found handle stands exactly where `credential.inject` declares it."""
    if found.decoded:
        return False
    shape = credential.shape
    glued = shape.prefix if shape is not None and not shape.length else ""
    match credential.inject:
        case HeaderInjection(name, template):
            left, _, right = template.partition("{secret}")
            return (
                found.location is Location.HEADER
                and found.name == name.lower()
                # RFC 9110, 11.1: the scheme in `Bearer {secret}` is case-insensitive. The shape is not.
                and found.before.endswith(glued)
                and found.before[: len(found.before) - len(glued)].lower() == left.lower()
                and found.after == right
            )
        case BasicInjection():
            _, colon, before = found.before.partition(":")
            return (
                found.location is Location.BASIC
                and found.name == "authorization"
                and colon == ":"
                and before == glued
                and not found.after
            )
        case QueryInjection(name):
            return found.location is Location.QUERY and found.name == name and _bare(found, glued)
        case PathInjection(prefix):
            return found.location is Location.PATH and _bare(found, prefix + glued)
        case SigV4Injection():
            name = found.name.lower()
            place = found.location is Location.HEADER or found.location is Location.QUERY
            return place and name == "x-amz-security-token" and _bare(found, glued)
        case BodyInjection():
            return False


def placed(found: Found, credential: Credential) -> Credential | None:
    """The credential with the one of its declared places in which the handle stands; None: in none."""
    if stands_at(found, credential):
        return credential
    for kind in credential.also:
        other = replace(credential, inject=kind, also=())
        if stands_at(found, other):
            return other
    return None


def mask(text: str, references: tuple[Shape, ...] = ()) -> str:
    """`text` with every handle, and all that looks like a reference, replaced: for audit records.

    A text that hides one behind percent-encoding is returned decoded.
    """
    masked = reading = text
    for _ in range(PERCENT_ROUNDS + 1):
        spans = sorted(_spans(reading, references, known=lambda _: True), reverse=True)
        for start, end in spans:
            kept = len(PREFIX) if reading[start : start + len(MARK)].lower() == _FOLDED else 0
            reading = reading[: start + kept] + _MASKED + reading[end:]
        if spans:
            masked = reading
        if "%" not in reading:
            break
        reading = unquote(reading, encoding="latin-1")
    return masked


def _suspect(text: str, references: tuple[Shape, ...]) -> bool:
    """Whether some reading of a head's joined text could hold a handle. False for nearly all requests."""
    for _ in range(PERCENT_ROUNDS + 1):
        folded = text.lower()
        if _FOLDED in folded or "basic" in folded:
            return True
        for shape in references:
            if shape.prefix in text:
                return True
        if "%" not in text:
            return False
        text = unquote(text, encoding="latin-1")
    return False


def _everywhere(head: RequestHead, references: tuple[Shape, ...], known: Known) -> Iterator[Found]:
    """Handles in every value of the head. Most hold none, so each is asked once before it is cut up."""
    for name, value in head.headers:
        folded = value.lower()
        if _FOLDED in folded or "%" in value or (references and _may_hold(value, references)):
            yield from _in_value(Location.HEADER, name, value, references, known)
        if folded.startswith("basic"):
            yield from _in_value(Location.BASIC, name, _basic(value[5:]), references, known)
    names = [name for name, _ in head.headers]
    if _may_hold("\n".join(names), references):
        for name in names:
            yield from _in_value(Location.HEADER, "", name, references, known)
    if not _may_hold(head.target, references):
        return
    path, _, query = head.target.partition("?")
    for segment in path.split("/"):
        yield from _in_value(Location.PATH, "", segment, references, known)
    for parameter in query.split("&") if query else ():
        name, _, value = parameter.partition("=")
        yield from _in_value(Location.QUERY, name, value, references, known)
        yield from _in_value(Location.QUERY, "", name, references, known)


def _may_hold(text: str, references: tuple[Shape, ...]) -> bool:
    if "%" in text or _FOLDED in text.lower():
        return True
    return bool(references) and any(shape.prefix in text for shape in references)


def _in_value(
    location: Location, name: str, value: str, references: tuple[Shape, ...], known: Known
) -> Iterator[Found]:
    """Handles in one value. Of the decoded readings, only what the plain one did not show."""
    seen: set[str] = set()
    for round_ in range(PERCENT_ROUNDS + 1):
        for start, end in _spans(value, references, known):
            text = value[start:end]
            if not round_ or text not in seen:
                seen.add(text)
                yield Found(location, name, value[:start], text, value[end:], decoded=round_ > 0)
        if "%" not in value:
            return
        value = unquote(value, encoding="latin-1")


def _spans(text: str, references: tuple[Shape, ...], known: Known) -> Iterator[tuple[int, int]]:
    """Where handles stand in `text`, each with its whole run of characters, in no particular order."""
    folded = text.lower()
    if len(folded) == len(text):  # false only outside latin-1, where no handle can stand
        start = folded.find(_FOLDED)
        while start >= 0:
            end = _run_end(text, start + len(MARK), _RUN)
            yield start, end
            start = folded.find(_FOLDED, end)
    for shape in references:
        start = text.find(shape.prefix)
        while start >= 0:
            end = start + len(shape.prefix) + shape.length
            if end <= _run_end(text, start + len(shape.prefix), _ALNUM) and known(text[start:end]):
                yield start, end
            start = text.find(shape.prefix, start + 1)


def _run_end(text: str, start: int, alphabet: str) -> int:
    rest = text[start : start + MAX_CHARS]  # nothing longer is a handle, and slicing stays linear
    # Nearly always the run is all that is left, and asking that costs a tenth of looking for its end.
    plain = rest.replace("-", "a").replace("_", "a").replace(".", "a") if alphabet is _RUN else rest
    if plain.isascii() and plain.isalnum():
        return start + len(rest)
    return start + len(rest) - len(rest.lstrip(alphabet))


def _basic(value: str) -> str:
    """What some reader might make of a Basic credential; empty when nobody could read it.

    Lenient on purpose: a strict decoder here would let a handle pass to a lenient one upstream.
    """
    text = value.strip().translate({ord("-"): "+", ord("_"): "/"})
    try:
        return b64decode(text.encode("latin-1") + b"==").decode("latin-1")
    except (binascii.Error, ValueError):
        return ""


def _bare(found: Found, before: str) -> bool:
    return found.before == before and not found.after
