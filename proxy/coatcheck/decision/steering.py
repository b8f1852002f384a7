"""Steering headers: a server may take from them another method, path, host, source or target.

A rule for POST is worth nothing where a server obeys `X-HTTP-Method-Override: DELETE` (Google's APIs and many
frameworks do). The same holds for a rule on paths and `X-Original-URL` (Symfony, IIS), or
`x-amz-copy-source`, which names what is read. So whatever a request declares in this way must be allowed like
a request of its own (`policy.match`). A header that names another host is refused, because it is a second
Host.

`TABLE` lists the known ones, for matching, approvals, records and the linter. A header that is not listed
counts as well if a word of its name says that it steers and its value is a method, a path or a URL. Names are
compared by their words, because CGI and WSGI do not tell `_` from `-`, and some servers no other sign either.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from itertools import islice
from typing import Final
from urllib.parse import quote, unquote

from coatcheck.decision.host import HostRefused, canonical_host, split_authority
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.path import check_target


class Kind(Enum):
    """What a header does to a request."""

    METHOD = auto()
    """Its value is the method."""
    PATH = auto()
    """Its value is the target, or a URL."""
    HOST = auto()
    FORWARDED = auto()
    """RFC 7239: it may name a host."""
    SOURCE = auto()
    """Its value is an object that is copied to the target: the server reads it."""
    OBJECT = auto()
    """`bucket/key`, percent-encoded: a source in the manner of S3."""
    HOST_OBJECT = auto()
    """`host/key`, with the bucket in the host: a source in the manner of Tencent."""
    RENAME = auto()
    """A source that is gone afterwards."""
    TARGET = auto()
    """Its value is where something is copied or moved to: the server writes there."""
    SWIFT_SOURCE = auto()
    """`container/object`, below the account that the target names."""
    ACCOUNT = auto()
    """Swift: of which account the source or the target is."""
    ARGUMENT = auto()
    """JSON with paths in it, which the method is applied to."""
    ROOT = auto()
    """JSON that says in which folder all paths of the request begin."""
    UPGRADE = auto()
    WORDS = auto()
    """Not in the table, but its name has a steering word: what the value looks like decides."""
    HOST_WORDS = auto()
    """The same of names that end in `host`."""


TABLE: Final = {
    **dict.fromkeys(
        (
            *("x-http-method-override", "x-http-method", "x-method-override", "x-original-method"),
            *("x-forwarded-method", "x-envoy-original-method", "x-rewrite-method", "x-request-method"),
            *("http-method-override", "method-override", "x-override-method"),
        ),
        Kind.METHOD,
    ),
    **dict.fromkeys(
        (
            *("x-original-url", "x-original-uri", "x-original-path", "x-envoy-original-path"),
            *("x-rewrite-url", "x-rewrite-uri", "x-rewrite-path", "x-override-url", "x-override-uri"),
            *("x-forwarded-uri", "x-forwarded-url", "x-forwarded-path", "x-request-uri", "x-request-url"),
            *("x-proxy-url", "x-http-destinationurl", "request-uri", "path-info", "x-path-info"),
        ),
        Kind.PATH,
    ),
    **dict.fromkeys(
        ("x-forwarded-host", "x-forwarded-server", "x-host", "x-original-host", "x-http-host-override"),
        Kind.HOST,
    ),
    **dict.fromkeys(("x-amz-copy-source", "x-goog-copy-source"), Kind.OBJECT),
    "x-cos-copy-source": Kind.HOST_OBJECT,
    "x-ms-copy-source": Kind.SOURCE,
    "x-ms-rename-source": Kind.RENAME,
    **dict.fromkeys(("x-copy-from", "x-symlink-target", "x-object-manifest"), Kind.SWIFT_SOURCE),
    **dict.fromkeys(("x-copy-from-account", "x-symlink-target-account", "destination-account"), Kind.ACCOUNT),
    "destination": Kind.TARGET,
    "dropbox-api-arg": Kind.ARGUMENT,
    "dropbox-api-path-root": Kind.ROOT,
    "forwarded": Kind.FORWARDED,
    "upgrade": Kind.UPGRADE,
    **dict.fromkeys(("script-name", "x-script-name"), Kind.WORDS),
}
"""Header names, with `-` between their words. If the value of one cannot be read, the request is refused."""

ORDINARY: Final = frozenset(
    {
        *("host", "accept", "accept-encoding", "accept-language", "authorization", "user-agent", "cookie"),
        *("content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "te"),
        *("cache-control", "pragma", "origin", "referer", "range", "expect", "x-api-key", "priority"),
        *("if-none-match", "if-modified-since", "traceparent", "tracestate", "date"),
    }
)
"""Names that are known to steer nothing. Only a shortcut: without it every verdict would be the same."""

HARMLESS: Final = frozenset({"host", "access-control-request-method"})
"""Host is judged elsewhere, as the host. `access-control-request-method` only asks which method may be used
later (Fetch, 4.8)."""

METHODS: Final = frozenset(
    {
        *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY", "TRACE", "CONNECT"),
        *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH", "MERGE"),
    }
)

_TOGETHER: Final = {name.replace("-", ""): kind for name, kind in TABLE.items()}
"""The same without separators: `X-OriginalURL`."""
_WITHIN: Final = ("original", "rewrit", "overrid", "forwarded", "upstream", "httpmethod")
"""Words that steer as a part of another: `X-OriginalRoute`."""
_METHOD_WORDS: Final = frozenset({"method", "verb", "override", "overriding"})
_STEERING_WORDS: Final = frozenset(
    {
        *("original", "orig", "rewrite", "rewritten", "override", "overridden", "forward", "forwarded"),
        *("proxy", "request", "req", "route", "routing", "real", "raw", "target", "upstream", "backend"),
        *("effective", "internal", "dispatch", "accel", "sendfile"),
        *("invoke", "matched", "unencoded"),
    }
)
_BARE: Final = frozenset({"x", "http", "path", "url", "uri", "info", "script", "name", "prefix", "host"})
_PLACES: Final = frozenset({"path", "url", "uri", "prefix"})
_COPYING: Final = frozenset({"copy", "rename", "move", "clone"})
_FROM: Final = frozenset({"source", "src", "from", "origin", "url", "uri", "path"})
_TO: Final = frozenset({"destination", "dest", "to", "target"})
_METADATA: Final = frozenset({"meta", "metadata"})
"""What object stores keep with an object, and give back: they read nothing in it."""

_SEPARATORS: Final = re.compile("[^a-z0-9]+")
_LONGEST_NAME: Final = 64
"""Characters of a header's name that is remembered; a longer one is looked at anew each time."""

PARAMETERS: Final = frozenset(
    {"method", "httpmethod", "httpmethodoverride", "methodoverride", "xhttpmethod", "xhttpmethodoverride"}
)
"""Query parameters, by letters and digits, that override the method; `method` only as `_method` (Rails,
Symfony, WordPress): a plain one is the application's."""

MAX_DECLARED: Final = 8
"""Methods, paths and objects that one request may declare: each is matched, recorded and shown."""

_VIRTUAL: Final = frozenset({"s3", "oss", "cos", "obs", "tos", "storage"})
"""Labels, or their beginnings before a hyphen, that follow the bucket in a host of an object store."""
_AFTER_REGION: Final = frozenset({"digitaloceanspaces", "linodeobjects", "vultrobjects", "bcebos", "r2"})
"""The same with a label between them: a region, or an account."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that a head asks for: its own, or a further one that a header declares."""

    method: str
    path: str
    """Canonical in form."""
    by: str
    """The header or parameter that says so."""
    host: str = ""
    """Empty: the request's own."""
    needed: bool = True
    """Whether the request is refused where this one is not allowed. False: it only adds what it would
    meet."""


@dataclass(frozen=True, slots=True)
class Steering:
    """What a head makes of its request."""

    methods: tuple[str, ...]
    """The request's own method, then every overriding one, in upper case as servers compare them."""
    upgrade: tuple[str, ...] = ()
    """Every value of the Upgrade header."""
    paths: tuple[tuple[str, str], ...] = ()
    """Other paths that the request may be taken for, each with the header that names it."""
    besides: tuple[Asked, ...] = ()
    """What it asks the server to read or write besides."""
    hosts: tuple[str, ...] = ()
    """Every host, or list of hosts, that a header other than Host names."""
    problem: str = ""
    """Why what a header says cannot be judged; empty when it can."""

    def asked(self, path: str) -> tuple[Asked, ...]:
        """Every request that must be allowed, the head's own one at canonical `path` first."""
        own = [Asked(method, path, "") for method in self.methods]
        routed = [Asked(method, other, by) for other, by in self.paths for method in self.methods]
        return tuple(dict.fromkeys((*own, *routed, *self.besides)))


def read_steering(destination: Destination, head: RequestHead) -> Steering | None:
    """One pass over the headers, whose names are lower-case. None: nothing steers, as in nearly all
    requests."""
    named = [
        (kind, name, value)
        for name, value in head.headers
        if name not in ORDINARY and (kind := kind_of(name)) is not None
    ]
    overriding = tuple(_parameters(head.query)) if "?" in head.target else ()
    if not named and not overriding:
        return None
    return _Reading(destination, head, overriding).read(named)


def kind_of(name: str) -> Kind | None:
    """What the header `name` (lower-case) may do to a request."""
    return _kept(name) if len(name) <= _LONGEST_NAME else _classify(name)


def overrides(parameter: str) -> bool:
    """Whether a parameter of a query or form (lower-case) is one that frameworks take the method from.

    PHP reads `.method` and `[method` as `_method`, and what a NUL ends as what stands before it.
    """
    parameter = parameter.partition("\0")[0]
    letters = "".join(filter(str.isalnum, parameter))
    return letters in PARAMETERS and (letters != "method" or not parameter[0].isalnum())


def names_another_host(steering: Steering, host: str) -> bool:
    """Whether a header names another host than the canonical `host`, or what is no host."""
    return any(not _is(named, host) for named in steering.hosts)


def describe(steering: Steering | None, path: str) -> tuple[str, ...]:
    """What a request may be taken for beside what it seems, for people and records. It may hold handles."""
    if steering is None:
        return ()
    said = [f"{method} by an override" for method in steering.methods[1:]]
    said += [f"{other} by {by}" for other, by in steering.paths if other != path]
    said += [f"{each.method} {each.host}{each.path} by {each.by}" for each in steering.besides]
    if steering.upgrade:
        said.append("a WebSocket, whose messages nobody is asked about")
    return tuple(said)


# --- names ------------------------------------------------------------------------------------------------


def _classify(name: str) -> Kind | None:
    words = tuple(word for word in _SEPARATORS.split(name) if word)
    plain = "-".join(words)
    listed = TABLE.get(plain) or _TOGETHER.get("".join(words))
    if listed is not None:
        return listed
    present = frozenset(words)
    if plain in HARMLESS or not words or present & _METADATA:
        return None
    if plain.endswith("copy-source"):
        return Kind.OBJECT
    if present & _COPYING and words[-1] in _FROM:
        return Kind.SOURCE if present.isdisjoint(("rename", "move")) else Kind.RENAME
    if words[-1] in ("destination", "dest") or present & _COPYING and words[-1] in _TO:
        return Kind.TARGET if "sec" not in present else None
    if words[-1] in ("host", "authority"):
        return Kind.HOST_WORDS if present & _STEERING_WORDS or present <= _BARE | {"authority"} else None
    if (
        present & (_STEERING_WORDS | _METHOD_WORDS)
        or any(word in plain for word in _WITHIN)
        or present & _PLACES
        and present <= _BARE
    ):
        return Kind.WORDS
    return None


@lru_cache(maxsize=4096)
def _kept(name: str) -> Kind | None:
    return _classify(name)


# --- values -----------------------------------------------------------------------------------------------


class _Unreadable(Exception):
    """A steering header whose value can be read in more than one way, or in none."""


class _Reading:
    """One head, read."""

    def __init__(self, destination: Destination, head: RequestHead, overriding: tuple[str, ...]) -> None:
        self._destination, self._head = destination, head
        self._methods = [head.method, *overriding]
        self._upgrade: list[str] = []
        self._paths: list[tuple[str, str]] = []
        self._besides: list[Asked] = []
        self._hosts: list[str] = []

    def read(self, named: list[tuple[Kind, str, str]]) -> Steering | None:
        problem = ""
        for kind, name, value in named:
            try:
                self._header(kind, name[:_LONGEST_NAME], value.strip())
            except _Unreadable as unreadable:
                problem = problem or f"{name[:_LONGEST_NAME]} {unreadable}"
            if len(self._methods) + len(self._paths) + len(self._besides) > 2 * MAX_DECLARED:
                break  # enough to refuse, and no more work
        methods = tuple(dict.fromkeys(self._methods))
        paths, besides = tuple(dict.fromkeys(self._paths)), tuple(dict.fromkeys(self._besides))
        if (len(paths) + 1) * len(methods) + len(besides) > MAX_DECLARED:
            problem = problem or "more methods, paths and objects are named than one request has use for"
        if not (len(methods) > 1 or paths or besides or self._upgrade or self._hosts or problem):
            return None
        return Steering(methods, tuple(self._upgrade), paths, besides, tuple(self._hosts), problem)

    def _header(self, kind: Kind, name: str, value: str) -> None:
        method = self._head.method
        match kind:
            case Kind.METHOD:
                self._methods.append(value.upper())
            case Kind.PATH:
                self._route(name, value)
            case Kind.HOST:
                self._hosts.append(value)
            case Kind.FORWARDED:
                self._hosts += _forwarded_hosts(value)
            case Kind.UPGRADE:
                self._upgrade.append(value)
            case Kind.OBJECT:
                self._object(name, value)
            case Kind.HOST_OBJECT:
                self._host_object(name, value)
            case Kind.ROOT:
                self._root(name, value)
            case Kind.SOURCE if _names_a_place(value) or name in TABLE:
                self._beside(("GET",), name, value)
            case Kind.RENAME if _names_a_place(value) or name in TABLE:
                self._beside(("GET", "DELETE"), name, value)
            case Kind.TARGET if _names_a_place(value):
                self._beside((method,), name, value)
                # What it overwrites is what a PUT would overwrite.
                self._besides.append(replace(self._besides[-1], method="PUT", needed=False))
            case Kind.TARGET if name == "destination" and method in ("COPY", "MOVE", "PUT"):
                self._swift(method, name, value)
            case Kind.SWIFT_SOURCE:
                self._swift("GET", name, value)
            case Kind.ACCOUNT:
                if value not in self._head.path.split("/")[2:3]:
                    raise _Unreadable("names another account")
            case Kind.ARGUMENT:
                self._argument(name, value)
            case Kind.WORDS if value.upper() in METHODS:
                if "method" in name or not _METHOD_WORDS.isdisjoint(_SEPARATORS.split(name)):
                    self._methods.append(value.upper())
            case Kind.WORDS if _names_a_place(value):
                self._route(name, value)
            case Kind.HOST_WORDS if _is_host(value):
                self._hosts.append(value)
            case _:
                pass  # a steering word, and a value that steers nothing

    def _route(self, name: str, value: str) -> None:
        """Another target of the same request. At another host it would be for that one's rules to judge, and
        a credential would go there."""
        host, path = self._place(value)
        if host:
            raise _Unreadable("names another host than the request's")
        if path != self._head.path:
            self._paths.append((path, name))

    def _beside(self, methods: tuple[str, ...], name: str, value: str) -> None:
        host, path = self._place(value)
        self._besides += [Asked(method, path, name, host) for method in methods]

    def _place(self, value: str) -> tuple[str, str]:
        """Host, empty for the request's own, and path of a path or URL."""
        scheme, separator, rest = value.partition("://")
        if value.startswith("//"):
            scheme, separator, rest = self._destination.scheme, "//", value[2:]
        if not separator:
            if not value.startswith("/"):
                raise _Unreadable("does not name a path")
            return "", _path(value)
        authority, _, target = rest.partition("/")
        if scheme.lower() not in ("http", "https"):
            raise _Unreadable("names something other than an http URL")
        try:
            host, port = split_authority(authority, 443 if scheme.lower() == "https" else 80)
        except HostRefused:
            raise _Unreadable("names a host that is not in its canonical form") from None
        own = (host, scheme.lower()) == (self._destination.host, self._destination.scheme)
        if own and port == self._destination.port:
            return "", _path("/" + target)
        if port not in (443, 80):
            raise _Unreadable("names another port than the request's")
        return host, _path("/" + target)

    def _object(self, name: str, value: str) -> None:
        """`bucket/key`, which S3 decodes once. Where the bucket stands in the host, the source's does,
        too."""
        text = unquote(value.partition("?")[0]).lstrip("/")
        bucket, slash, key = text.partition("/")
        if not slash or not bucket:
            raise _Unreadable("does not name a bucket and a key")
        own, rest = _bucket_in(self._destination.host)
        if not own:
            self._besides.append(Asked("GET", _quoted(f"/{text}"), name))
            return
        if own == bucket.lower():
            self._besides.append(Asked("GET", _quoted(f"/{key}"), name))
            self._besides.append(Asked("GET", _quoted(f"/{text}"), name, needed=False))
            return
        try:
            host = canonical_host(f"{bucket}.{rest}".lower())
        except HostRefused:
            raise _Unreadable("names a bucket that is no host") from None
        self._besides.append(Asked("GET", _quoted(f"/{key}"), name, host))

    def _host_object(self, name: str, value: str) -> None:
        host, _, key = unquote(value.partition("?")[0]).partition("/")
        named, _ = self._place(f"{self._destination.scheme}://{host}/")
        self._besides.append(Asked("GET", _quoted(f"/{key}"), name, named))

    def _root(self, name: str, value: str) -> None:
        """Dropbox writes a path in another namespace as `ns:ID/path`."""
        said = _members(value)
        match said.get(".tag"), said.get("root"), said.get("namespace_id"):
            case "home", None, None:
                return
            case ("root", str(space), None) | ("namespace_id", None, str(space)) if space.isalnum():
                self._besides.append(Asked(self._head.method, _quoted(f"/ns:{space}"), name))
            case _:
                raise _Unreadable("does not say where paths begin")

    def _swift(self, method: str, name: str, value: str) -> None:
        _, *account = self._head.path.split("/")[:3]
        self._besides.append(
            Asked(method, _quoted("/".join(("", *account, unquote(value).lstrip("/")))), name)
        )

    def _argument(self, name: str, value: str) -> None:
        try:
            said = json.loads(value, object_pairs_hook=_Pairs)  # with each of two keys of one name
        except (ValueError, RecursionError):
            raise _Unreadable("is not JSON") from None
        for path in islice(_paths_in(said, "", 0), 2 * MAX_DECLARED):
            self._besides.append(Asked(self._head.method, _quoted("/" + path.lstrip("/")), name))


def _members(said: str) -> dict[str, object]:
    """Of a JSON object; none if it is not one, or has a name twice."""
    try:
        pairs = json.loads(said, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return {}
    found = dict(pairs) if isinstance(pairs, _Pairs) else {}
    return found if len(found) == len(pairs) else {}


class _Pairs(list[tuple[str, object]]):
    """A JSON object, as it is written."""


def _paths_in(said: object, key: str, depth: int) -> Iterator[str]:
    """Texts that are paths, by their form or by the name of what they are given for."""
    if depth > 8:
        raise _Unreadable("is nested too deep")
    if isinstance(said, str):
        if said.startswith("/") or said and key.endswith("path"):
            yield said
    elif isinstance(said, _Pairs):
        for name, value in said:
            yield from _paths_in(value, name, depth + 1)
    elif isinstance(said, list):
        for value in said:
            yield from _paths_in(value, key, depth + 1)


def _parameters(query: str) -> Iterator[str]:
    """Methods that a query's parameters ask for."""
    lower = query.lower()
    if "method" not in lower and "%" not in lower:
        return
    for pair in lower.replace(";", "&").split("&"):  # both part pairs in older servers
        name, _, value = pair.partition("=")
        if ("method" not in name and "%" not in name) or len(value) > _LONGEST_NAME:
            continue
        name, value = unquote(name).lower().strip(" +"), unquote(value).strip().upper()
        if value in METHODS and overrides(name):
            yield value


def _forwarded_hosts(value: str) -> Iterator[str]:
    # Without a look at quotes: what a quoted string holds counts too, so that none hides a host.
    for pair in value.replace(",", ";").split(";"):
        key, _, named = pair.partition("=")
        if key.strip().lower() == "host":
            yield named.strip().strip('"')


def _names_a_place(value: str) -> bool:
    return value.startswith("/") or "://" in value[:16]


def _path(target: str) -> str:
    path = quote(
        target.partition("?")[0].partition("#")[0], safe="/%~:@!$&'()*+,;=-._[]\\", encoding="latin-1"
    )
    return _checked(path)


def _quoted(path: str) -> str:
    return _checked(quote(path, safe="/~:@!$&'()*+,;=-._\\"))


def _checked(path: str) -> str:
    if check_target(path, slashes=True) is not None:
        raise _Unreadable("names a path that could be read in more than one way")
    return path


def _bucket_in(host: str) -> tuple[str, str]:
    """The bucket that stands in the host of an object store, and the rest; both empty if none does."""
    labels = host.split(".")
    for at, label in enumerate(labels):
        service = label.partition("-")[0]
        if service in _VIRTUAL and (service != "storage" or labels[at + 1 : at + 2] == ["googleapis"]):
            return ".".join(labels[:at]), ".".join(labels[at:])
        if at and label in _AFTER_REGION:
            return ".".join(labels[: at - 1]), ".".join(labels[at - 1 :])
    return "", ""


def _is(named: str, host: str) -> bool:
    try:
        return split_authority(named, 443)[0] == host
    except HostRefused:
        return False


def _is_host(value: str) -> bool:
    try:
        return bool(split_authority(value, 443))
    except HostRefused:
        return False
