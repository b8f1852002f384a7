"""Headers that ask a server to read a request as another one: method, path, protocol, host.

A rule that allows POST and no DELETE means nothing where `X-HTTP-Method-Override: DELETE` is honoured
(Google's APIs and many frameworks do), nor a rule on paths where `X-Original-URL` is (Symfony, IIS).
So an overriding method must be allowed like the method itself, and an overriding path is refused. Where
`X-Forwarded-Host` or `Forwarded: host=` is believed (frameworks can be told to, front ends of many tenants
choose by it), it is a second Host: it must name the host that was judged. CGI and WSGI read `_` and `-` in
names alike, so every mixture counts. A `_method` parameter, which some frameworks read from queries and
forms, is out of reach: it is the application's, and any name could mean it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.decision.message import RequestHead


def _spellings(*names: str) -> Iterator[str]:
    for name in names:
        words = name.split("-")
        for joints in product("-_", repeat=len(words) - 1):
            yield words[0] + "".join(joint + word for joint, word in zip(joints, words[1:], strict=True))


_METHOD = frozenset(_spellings("x-http-method-override", "x-http-method", "x-method-override"))
_PATH = frozenset(_spellings("x-original-url", "x-original-uri", "x-rewrite-url", "x-override-url"))
_HOST = frozenset(
    _spellings("x-forwarded-host", "x-forwarded-server", "x-host", "x-original-host", "x-http-host-override")
)
_WATCHED = _METHOD | _PATH | _HOST | {"upgrade", "forwarded"}


@dataclass(frozen=True, slots=True)
class Steering:
    """What a request's headers make of it."""

    methods: tuple[str, ...]
    """The request's own method, then every overriding one, in upper case as servers compare them."""
    upgrade: tuple[str, ...]
    """Every value of the Upgrade header."""
    other_path: bool
    """A header names another path than the target."""
    hosts: tuple[str, ...] = ()
    """Every host, or list of hosts, that a header other than Host names."""


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
        hosts=tuple(_hosts(watched)),
    )


def names_another_host(steering: Steering, host: str) -> bool:
    """Whether a header names another host than the canonical `host`, or what is no host."""
    return any(not _is(named, host) for named in steering.hosts)


def _hosts(watched: list[tuple[str, str]]) -> Iterator[str]:
    for name, value in watched:
        if name in _HOST:
            yield value.strip()
        elif name == "forwarded":
            # Without a look at quotes: what a quoted string holds counts too, so that none hides a host.
            for pair in value.replace(",", ";").split(";"):
                key, _, named = pair.partition("=")
                if key.strip().lower() == "host":
                    yield named.strip().strip('"')


def _is(named: str, host: str) -> bool:
    try:
        return split_authority(named, 443)[0] == host
    except HostRefused:
        return False
