"""Where handles stand in a request: every one in its head, and those that pass in a streamed body.

A handle counts only where its credential is declared; anywhere else in a head it is an alarm (I4), so
`find` looks everywhere: header names and values, the target, Basic's decoded user and password, and
behind two rounds of percent-encoding. Nearly all requests carry none, so that case costs one join and
one search. An agent that encrypts or splits its own handle is out of reach, and gains nothing by it:
the string has no authority elsewhere.
"""

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from string import ascii_letters, digits
from typing import Final

from coatcheck.decision.handle import MAX_CHARS, PREFIX
from coatcheck.decision.injection import Found, Location
from coatcheck.decision.message import RequestHead
from coatcheck.decision.outside import OutsideText
from coatcheck.decision.policy import Credential, Shape

MARK: Final = "cch_eyJ"
"""How every handle begins: our prefix and the base64url of `{"`. `cch_` alone could be anybody's word."""
MAX_FOUND: Final = 32
"""`find` stops here: more than any rule has credentials, so what is past it changes no verdict."""
PERCENT_ROUNDS: Final = 2
MAX_SHOWN: Final = 8192
"""What `mask` looks at: a longer target is refused, and records keep less."""
_FOLDED: Final = MARK.lower()
_RUN: Final = re.compile(f"[A-Za-z0-9_.-]{{0,{MAX_CHARS}}}")
_RUN_CHARACTERS: Final = "%_.-" + ascii_letters + digits
_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")
_ESCAPED: Final = {
    high + low: chr(int(high + low, 16))
    for high in "0123456789abcdefABCDEF"
    for low in "0123456789abcdefABCDEF"
}
_MASKED: Final = "***"

type Known = Callable[[str], bool]
"""Whether a text of a reference's shape is a reference that we issued."""


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
    return credential.inject.stands_at(found, shape.prefix if shape is not None and not shape.length else "")


def placed(found: Found, credential: Credential) -> Credential | None:
    """The credential with the one of its declared places in which the handle stands; None: in none."""
    if stands_at(found, credential):
        return credential
    for kind in credential.other_injectors:
        other = replace(credential, inject=kind, other_injectors=())
        if stands_at(found, other):
            return other
    return None


def mask(text: OutsideText, references: tuple[Shape, ...] = ()) -> str:
    """`text` with every handle, and all that looks like a reference, replaced: for audit records.

    A text that hides one behind percent-encoding is returned decoded. Of a longer text than MAX_SHOWN only
    its beginning is returned, without a run at its end that may be half a handle.
    """
    if len(text) > MAX_SHOWN:
        text = text[:MAX_SHOWN].rstrip(_RUN_CHARACTERS) + "…"
    masked = reading = _masked(text, references)
    for _ in range(PERCENT_ROUNDS):
        if "%" not in reading:
            break
        decoded = _unquoted(reading)
        reading = _masked(decoded, references)
        if reading != decoded:
            masked = reading
    return masked


def _masked(text: str, references: tuple[Shape, ...]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in sorted(_spans(text, references, known=lambda _: True)):
        if start >= done:
            kept = start + (len(PREFIX) if text[start : start + len(MARK)].lower() == _FOLDED else 0)
            parts += (text[done:kept], _MASKED)
        done = max(done, end)
    return "".join((*parts, text[done:])) if parts else text


def _readings(text: str) -> Iterator[str]:
    """`text` itself, and what it is behind one and two rounds of percent-encoding."""
    yield text
    for _ in range(PERCENT_ROUNDS):
        if "%" not in text:
            return
        text = _unquoted(text)
        yield text


def _unquoted(text: str) -> str:
    """As urllib's unquote in latin-1, which takes thirty times as long for stray percent signs."""
    parts = _ESCAPE.split(text)
    parts[1::2] = map(_ESCAPED.__getitem__, parts[1::2])
    return "".join(parts)


def _suspect(text: str, references: tuple[Shape, ...]) -> bool:
    """Whether some reading of a head's joined text could hold a handle. False for nearly all requests."""
    for reading in _readings(text):
        folded = reading.lower()
        if _FOLDED in folded or "basic" in folded:
            return True
        for shape in references:
            if shape.prefix in reading:
                return True
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
    # A target may be tens of thousands of parts, of which hardly any can hold a handle.
    shortest = min((len(MARK), *(len(shape.prefix) + shape.length for shape in references)))
    for segment in path.split("/"):
        if len(segment) >= shortest and _suspect(segment, references):
            yield from _in_value(Location.PATH, "", segment, references, known)
    for parameter in query.split("&"):
        if len(parameter) < shortest or not _suspect(parameter, references):
            continue
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
    for round_, reading in enumerate(_readings(value)):
        for start, end in _spans(reading, references, known):
            text = reading[start:end]
            if not round_ or text not in seen:
                seen.add(text)
                yield Found(location, name, reading[:start], text, reading[end:], decoded=round_ > 0)


def _spans(text: str, references: tuple[Shape, ...], known: Known) -> Iterator[tuple[int, int]]:
    """Where handles stand in `text`, each with its whole run of characters, in no particular order."""
    folded = text.lower()
    if len(folded) == len(text):  # false only outside latin-1, where no handle can stand
        start = folded.find(_FOLDED)
        while start >= 0:
            run = _RUN.match(text, start + len(MARK))
            end = run.end() if run else start + len(MARK)
            yield start, end
            start = folded.find(_FOLDED, end)
    for shape in references:
        first = text.find(shape.prefix)
        if first < 0:
            continue
        length = len(shape.prefix) + shape.length
        for match in _candidates(shape).finditer(text, first):
            start = match.start()
            if known(text[start : start + length]):
                yield start, start + length


@lru_cache(maxsize=1024)
def _candidates(shape: Shape) -> re.Pattern[str]:
    """Where a text of this shape begins. One character is consumed: prefixes may overlap themselves."""
    first, rest = re.escape(shape.prefix[0]), re.escape(shape.prefix[1:])
    return re.compile(f"{first}(?={rest}[A-Za-z0-9]{{{shape.length}}})")


def _basic(value: str) -> str:
    """What some reader might make of a Basic credential; empty when nobody could read it.

    Lenient on purpose: a strict decoder here would let a handle pass to a lenient one upstream.
    """
    text = value.strip().translate({ord("-"): "+", ord("_"): "/"})
    try:
        return b64decode(text.encode("latin-1") + b"==").decode("latin-1")
    except (binascii.Error, ValueError):
        return ""
