"""Headers that ask a server to read a request as another one: method, path, protocol.

A rule that allows POST and no DELETE means nothing where `X-HTTP-Method-Override: DELETE` is honoured
(Google's APIs and many frameworks do), nor a rule on paths where `X-Original-URL` is (Symfony, IIS).
So an overriding method must be allowed like the method itself, and an overriding path is refused. CGI and
WSGI read `_` and `-` in names alike, so every mixture counts. A `_method` parameter, which some frameworks
read from queries and forms, is out of reach: it is the application's, and any name could mean it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from coatcheck.decision.message import RequestHead


def _spellings(*names: str) -> Iterator[str]:
    for name in names:
        words = name.split("-")
        for joints in product("-_", repeat=len(words) - 1):
            yield words[0] + "".join(joint + word for joint, word in zip(joints, words[1:], strict=True))


_METHOD = frozenset(_spellings("x-http-method-override", "x-http-method", "x-method-override"))
_PATH = frozenset(_spellings("x-original-url", "x-original-uri", "x-rewrite-url", "x-override-url"))
_WATCHED = _METHOD | _PATH | {"upgrade"}


@dataclass(frozen=True, slots=True)
class Steering:
    """What a request's headers make of it."""

    methods: tuple[str, ...]
    """The request's own method, then every overriding one, in upper case as servers compare them."""
    upgrade: tuple[str, ...]
    """Every value of the Upgrade header."""
    other_path: bool
    """A header names another path than the target."""


def read_steering(head: RequestHead) -> Steering:
    """One pass over the headers, whose names are lower-case."""
    watched = [(name, value) for name, value in head.headers if name in _WATCHED]
    if not watched:
        return Steering((head.method,), (), False)
    overriding = tuple(value.strip().upper() for name, value in watched if name in _METHOD)
    return Steering(
        methods=(head.method, *overriding),
        upgrade=tuple(value for name, value in watched if name == "upgrade"),
        other_path=any(name in _PATH for name, _ in watched),
    )
