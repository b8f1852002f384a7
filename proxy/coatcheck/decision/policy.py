"""What a security team allowed, compiled. `policy.file` builds these values; `match` reads them.

Matching is equality and suffix only: no regular expression meets attacker input.

A request has several readings: what a server may take it for. Some are declared in headers: methods, paths
and objects (`steering`), or an upgrade. Others are spellings of its path that servers treat alike
(`path.spellings`). What is declared must be allowed like a request of its own. A spelling neither allows nor
refuses; if it fits a rule that the request as written does not fit, that rule's terms hold as well (I6).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

from coatcheck.decision.approval import Asking, strictest_asking
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.host_index import HostIndex
from coatcheck.decision.injection import Injector
from coatcheck.decision.message import Destination, OriginClass, RequestHead
from coatcheck.decision.observation import Observation
from coatcheck.decision.path import ENCODED_SLASH, ambiguous, canonical_path, check_target, spellings
from coatcheck.decision.path_index import PathIndex
from coatcheck.decision.session import DEFAULT_ORIGIN_CLASSES, Isolation
from coatcheck.decision.steering import Asked, Kind, Steering, kind_of, names_another_host, read_steering


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Which secret: `store:mount/path#field`, e.g. `vault:secret/openai#api_key`. A name, never a value."""

    store: str
    mount: str
    path: str
    field: str

    def __str__(self) -> str:
        return f"{self.store}:{self.mount}/{self.path}#{self.field}"


@dataclass(frozen=True, slots=True)
class HostPattern:
    """An exact canonical host, or `*.suffix`, which matches one or more labels before the suffix."""

    suffix: str
    wildcard: bool = False

    def matches(self, host: str) -> bool:
        if self.wildcard:
            return host.endswith("." + self.suffix)
        return host == self.suffix

    def __str__(self) -> str:
        return f"*.{self.suffix}" if self.wildcard else self.suffix


@dataclass(frozen=True, slots=True)
class PathPattern:
    """An exact path, a prefix ending in `/**`, or segments in which `*` stands for one whole segment.

    `/repos/*/issues` matches `/repos/x/issues`; `/v1/**` matches `/v1` and everything below it. A segment
    with an escaped slash is matched only where the pattern writes one: `/*%2F*` matches `/@scope%2Fname`.
    """

    segments: tuple[str, ...]
    prefix: bool = False

    def matches(self, path: str) -> bool:
        parts = path.split("/")[1:]
        return self.matches_encoded(parts) if ENCODED_SLASH in path else self.matches_segments(parts)

    def matches_segments(self, parts: list[str]) -> bool:
        """`parts` is a canonical path cut at its slashes, without the empty one before the first, and without
        escaped slashes."""
        if len(parts) < len(self.segments) or (len(parts) > len(self.segments) and not self.prefix):
            return False
        # A loop, not all(): this runs for every request, and a generator costs more than the comparison.
        for want, have in zip(self.segments, parts, strict=False):
            if want != have and (want != "*" or have == ""):
                return False
        return True

    def matches_encoded(self, parts: list[str]) -> bool:
        """The same, of a path with escaped slashes. None is matched by a star or by what is below a
        prefix."""
        if len(parts) < len(self.segments) or (len(parts) > len(self.segments) and not self.prefix):
            return False
        if any(ENCODED_SLASH in part for part in parts[len(self.segments) :]):
            return False
        return all(segment_matches(*pair) for pair in zip(self.segments, parts, strict=False))

    @property
    def leniently(self) -> "PathPattern":
        """What lenient servers make of it, to compare with what they make of a path (`path.spellings`)."""
        return PathPattern(tuple(spellings("/" + "/".join(self.segments))[0]), self.prefix)

    def __str__(self) -> str:
        return "/" + "/".join((*self.segments, "**") if self.prefix else self.segments)


def segment_matches(want: str, have: str) -> bool:
    """Whether the segment `have` of a canonical path is what a pattern writes as `want`."""
    wants, haves = want.split(ENCODED_SLASH), have.split(ENCODED_SLASH)
    if len(wants) != len(haves):
        return False
    return all(
        part == other or (part == "*" and other != "") for part, other in zip(wants, haves, strict=True)
    )


class HandlesInBody(StrEnum):
    """What happens to a handle found in a body (I4)."""

    REPORT = "report"
    MASK = "mask"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a handle must look like for a client that checks.

    With `length` 0 the handle is `prefix` + a signed handle; otherwise it is a random reference of
    `prefix` + `length` characters [A-Za-z0-9], looked up by its hash.
    """

    prefix: str
    length: int = 0


@dataclass(frozen=True, slots=True)
class Credential:
    """Which secret, where it may go, where in the request it is put, and how."""

    name: str
    secret: SecretRef
    hosts: tuple[HostPattern, ...]
    inject: Injector
    other_injectors: tuple[Injector, ...] = ()
    """Of further places where the handle may be instead, because clients of one API differ."""
    methods: frozenset[str] = frozenset()
    """Empty: whatever the rule allows."""
    paths: tuple[PathPattern, ...] = ()
    """Empty: whatever the rule allows."""
    env: str | None = None
    shape: Shape | None = None
    handle_required: bool = True
    """False: a request of the session that matches gets the credential without showing a handle."""
    origins: frozenset[OriginClass] = DEFAULT_ORIGIN_CLASSES
    isolation: Isolation = Isolation.NONE
    """The least isolation that a session must have."""
    plain_http: bool = False
    keep_set_cookie: bool = False
    scrub: bool = True
    revoke_on_theft: bool = False
    """Revoke the victim's session when its handle turns up elsewhere."""
    inherit: bool = True
    """Whether a handle that a fork's, or a restored sandbox's, processes hold from before counts there."""

    @property
    def injectors(self) -> tuple[Injector, ...]:
        return self.inject, *self.other_injectors


class LimitKind(StrEnum):
    REQUESTS = "requests"
    CONCURRENT = "concurrent"
    BYTES_UP = "bytes_up"
    BYTES_DOWN = "bytes_down"


class LimitScope(StrEnum):
    """What shares a bucket."""

    SESSION = "session"
    SUBJECT = "subject"
    TENANT = "tenant"
    CREDENTIAL = "credential"
    RULE = "rule"


@dataclass(frozen=True, slots=True)
class Limit:
    """`count` units in `period` seconds, with `burst` at once; for CONCURRENT only `count` counts."""

    kind: LimitKind
    count: int
    period: float
    burst: int
    per: LimitScope
    of: str = ""
    """The rule whose limit it is, where that is not the rule that it stands in (`strictest`)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is allowed."""

    name: str
    hosts: tuple[HostPattern, ...]
    methods: frozenset[str]
    paths: tuple[PathPattern, ...]
    """Empty: every path."""
    ports: frozenset[int] = frozenset({443})
    credentials: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    plain_http: bool = False
    websocket: bool = False
    http2: bool = False
    tunnel: bool = False
    handles_in_body: HandlesInBody = HandlesInBody.REPORT
    scrub: bool = True
    """False: answers under this rule are not searched for secrets."""
    compression: bool = False
    """True: the upstream may compress answers that are searched."""
    max_request_bytes: int = 0
    """Streamed bytes a request may have; 0 means no limit beyond `limits`."""
    max_response_bytes: int = 0
    asking: Asking | None = None
    """None: nobody is asked."""
    further: tuple["Rule", ...] = ()
    """Rules that a request of several readings fits besides: their terms are in this one's (`strictest`).
    Empty in a policy."""

    @property
    def names(self) -> str:
        """Its name, with those of `further`."""
        return " + ".join((self.name, *(rule.name for rule in self.further)))

    @property
    def searched(self) -> bool:
        """Whether answers are searched for secrets."""
        return self.scrub and not self.tunnel


@dataclass(frozen=True, slots=True)
class Policy:
    """One file of one owner, compiled. An empty policy denies all."""

    name: str
    owner: str
    sha256: str
    credentials: Mapping[str, Credential] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    filesystem: Filesystem | None = None
    """None: as the sandbox's own permissions have it."""
    observe: Observation | None = None
    index: HostIndex["HostRules"] = field(init=False, repr=False, compare=False)
    """The rules by host, built from `rules`."""

    def __post_init__(self) -> None:
        entries = ((rule, ((host.suffix, host.wildcard) for host in rule.hosts)) for rule in self.rules)
        object.__setattr__(self, "index", HostIndex.build(entries, HostRules))


# --- the rules of one host ----------------------------------------------------------------------------

_FEW: Final = 64
"""Rules of one host."""

type Door = tuple[str, int, str]
"""Scheme, port and method."""


class Room:
    """The rules of one host behind one door, by path. Numbers are places in the policy's order."""

    def __init__(self, rules: Sequence[tuple[int, Rule]]) -> None:
        self.first = rules[0][0]
        self.looking = next((number for number, rule in rules if rule.paths), None)
        """The first rule that looks at paths."""
        open_ = [(number, rule) for number, rule in rules if not rule.paths]
        upgraded = next((number for number, rule in open_ if rule.websocket), None)
        firsts = {number for number, _ in open_[:1]} | ({upgraded} if upgraded is not None else set())
        self._open = tuple(sorted(firsts))
        """Rules for every path: the first, and the first for WebSockets. No other is ever reached."""
        self._paths = PathIndex(
            (number, path.leniently.segments, path.prefix) for number, rule in rules for path in rule.paths
        )

    def find(self, alike: tuple[list[str], ...]) -> list[int]:
        """The rules that fit a spelling of a path, in order. Some may stand there twice."""
        found = [*self._open, *self._paths.find(alike[0])]
        for more in alike[1:]:
            found += self._paths.find(more)
        if len(found) > 1:
            found.sort()
        return found


class HostRules:
    """The rules of one host, found by scheme, port, method and path: deciding takes as long with many of
    them."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self._tunnels: dict[tuple[str, int], Rule] = {}
        self._ports: dict[tuple[str, int], Rule] = {}
        self._schemes: dict[str, Rule] = {}
        if len(rules) > _FEW:
            _ = self.rooms

    @cached_property
    def rooms(self) -> dict[Door, Room]:
        """Made at the first request to the host, where that takes no longer than judging a few: a policy of
        thousands of hosts is then in force at once."""
        rooms: dict[Door, list[tuple[int, Rule]]] = {}
        for number, rule in enumerate(self.rules):
            for scheme in ("https", "http") if rule.plain_http else ("https",):
                self._schemes.setdefault(scheme, rule)
                for port in rule.ports:
                    self._ports.setdefault((scheme, port), rule)
                    if rule.tunnel:
                        self._tunnels.setdefault((scheme, port), rule)
                        continue
                    for method in rule.methods:
                        rooms.setdefault((scheme, port, method), []).append((number, rule))
        return {door: Room(inside) for door, inside in rooms.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostRules) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash(self.rules)

    def missing(self, door: Door) -> Deny:
        """Why no rule allows a request at `door`, whatever its path: the reason that comes closest to a
        rule, as that is the one which the reader of a refusal must change."""
        scheme, port, _ = door
        room = self.rooms.get(door)
        if (scheme, port) in self._tunnels:
            return Deny(Reason.PROTOCOL_REFUSED, rule=self._tunnels[scheme, port].name)
        if room is not None:
            return Deny(Reason.PATH_NOT_ALLOWED, rule=self.rules[room.first].name)
        if (scheme, port) in self._ports:
            return Deny(Reason.METHOD_NOT_ALLOWED, rule=self._ports[scheme, port].name)
        if scheme in self._schemes:
            return Deny(Reason.PORT_NOT_ALLOWED, rule=self._schemes[scheme].name)
        return Deny(Reason.PLAIN_HTTP_REFUSED, rule=self.rules[0].name)


# --- reading a policy --------------------------------------------------------------------------------

_PROGRESS = (Reason.HOST_NOT_ALLOWED, Reason.PLAIN_HTTP_REFUSED, Reason.PORT_NOT_ALLOWED)
"""How far a connection came with a rule."""

_SHIFTING = "an empty segment or a path parameter, where a rule looks at paths"
_ENCODED = "an escaped slash in the path, which no rule declares"


def rules_for_host(policy: Policy, host: str) -> tuple[Rule, ...]:
    """The rules that name the canonical `host`, in file order."""
    found = policy.index.find(host)
    return found.rules if found is not None else ()


def match(policy: Policy, destination: Destination, head: RequestHead) -> Rule | Deny:
    """The first rule in file order that allows the request, with the terms of those that its other readings
    fit; else the most telling refusal.

    Includes `path.check_target`: a target that is not one thing to every reader matches no rule. A
    path whose segments are ambiguous is refused at the first otherwise fitting rule that looks at
    paths: skipping that rule would let `/v1//models` slip past its limits to a broader one.
    """
    host = policy.index.find(destination.host)
    if host is None:
        return Deny(Reason.HOST_NOT_ALLOWED)
    malformed = check_target(head.target, slashes=True)
    if malformed is not None:
        return malformed
    door = (destination.scheme, destination.port, head.method)
    steering = read_steering(destination, head)
    if steering is not None:
        return _steered(policy, host, destination, head, steering)
    found = _fit(host, door, canonical_path(head.path), False)
    if isinstance(found, Deny):
        return found
    rule, others = found
    return strictest(rule, others) if others else rule


type _Found = tuple[Rule, list[Rule]]
"""The rule that decides, and those whose terms hold as well."""


def _fit(host: HostRules, door: Door, path: str, upgrade: bool) -> _Found | Deny:
    """What decides one reading: the first rule that it fits as it is written. A rule that fits another
    spelling of it, and not the written one after it, has a say as well."""
    room = host.rooms.get(door)
    if room is None:
        return host.missing(door)
    encoded = ENCODED_SLASH in path
    if ambiguous(path):
        get = host.rooms.get((door[0], door[1], "GET")) if door[2] == "HEAD" else None
        taken = _shifted(host, door, get, upgrade) if get is not None else None
        if isinstance(taken, Deny) and taken.reason is Reason.PATH_FORM_REFUSED:
            return taken  # servers carry it out as a GET, of which no rule could say what it means
        return _shifted(host, door, room, upgrade)
    parts = path.split("/")[1:]
    rule: Rule | None = None
    others: list[Rule] = []
    unfit: Rule | None = None
    for number in room.find(spellings(path)):
        each = host.rules[number]
        if not _written(each, parts, encoded):
            if each not in others and (each.websocket or not upgrade):
                others.append(each)
        elif upgrade and not each.websocket:
            unfit = unfit or each
        elif rule is None:
            rule = each
    if rule is None:
        if unfit is not None:
            return Deny(Reason.PROTOCOL_REFUSED, rule=unfit.name)
        return Deny(Reason.PATH_FORM_REFUSED, _ENCODED) if encoded else host.missing(door)
    if door[2] == "HEAD" and (door[0], door[1], "GET") in host.rooms:
        others += _as_get(host, door, path, rule)
    return rule, [other for other in others if other is not rule] if others else others


def _as_get(host: HostRules, door: Door, path: str, rule: Rule) -> Iterator[Rule]:
    """Servers carry out HEAD as GET. Rules for GET that stand before the one for HEAD have a say."""
    found = _fit(host, (door[0], door[1], "GET"), path, False)
    if not isinstance(found, Deny):
        at = host.rules.index(rule)
        yield from (each for each in (found[0], *found[1]) if host.rules.index(each) < at)


def _written(rule: Rule, parts: list[str], encoded: bool) -> bool:
    """Whether the rule fits the path as it is written."""
    if not rule.paths:
        return not encoded
    return _any_encoded(rule.paths, parts) if encoded else _any_path(rule.paths, parts)


def _shifted(host: HostRules, door: Door, room: Room, upgrade: bool) -> _Found | Deny:
    """A path whose segments are ambiguous: no rule that looks at paths can say whether it is meant."""
    for number in room.find(([],)):
        rule = host.rules[number]
        if rule.paths or upgrade and not rule.websocket:
            continue
        if room.looking is not None and room.looking < number:
            break
        return rule, []
    if room.looking is not None:
        return Deny(Reason.PATH_FORM_REFUSED, _SHIFTING, rule=host.rules[room.looking].name)
    return Deny(Reason.PROTOCOL_REFUSED, rule=host.rules[room.first].name)


def _steered(
    policy: Policy, host: HostRules, destination: Destination, head: RequestHead, steering: Steering
) -> Rule | Deny:
    """The same for a request whose headers make another one of it: each one that they declare is judged."""
    if steering.problem:
        return Deny(Reason.HEADER_FORM_REFUSED, steering.problem)
    if steering.hosts and names_another_host(steering, destination.host):
        return Deny(Reason.HEADER_FORM_REFUSED, "a header names another host than the request's")
    upgrade = bool(steering.upgrade)
    # `Upgrade: h2c` would turn the connection into one that nobody reads (h2c smuggling).
    if upgrade and not (len(steering.upgrade) == 1 and steering.upgrade[0].lower() == "websocket"):
        found = _reading(host, destination, Asked(head.method, head.path, ""), False)
        return found if isinstance(found, Deny) else Deny(Reason.PROTOCOL_REFUSED, rule=found[0].name)
    chosen: Rule | None = None
    others: list[Rule] = []
    for asked in steering.asked(head.path):
        there = policy.index.find(asked.host) if asked.host else host
        found = _reading(there, destination, asked, upgrade and chosen is None)
        if isinstance(found, Deny):
            if asked.needed:
                return _unallowed(found, asked)
            continue
        if chosen is None:
            chosen = found[0]
            if upgrade:  # and without it: a server may ignore the header
                without = _reading(there, destination, asked, False)
                others += _all_of(without)
        others += _all_of(found)
    if chosen is None:
        raise ValueError("a request without a reading")
    return strictest(chosen, others)


def _reading(there: HostRules | None, destination: Destination, asked: Asked, upgrade: bool) -> _Found | Deny:
    if there is None:
        return Deny(Reason.HOST_NOT_ALLOWED)
    door = (destination.scheme, destination.port, asked.method)
    return _fit(there, door, canonical_path(asked.path), upgrade)


def _all_of(found: _Found | Deny) -> list[Rule]:
    return [] if isinstance(found, Deny) else [found[0], *found[1]]


def _unallowed(denial: Deny, asked: Asked) -> Deny:
    if not asked.by:
        return denial  # of the request itself, or of a method by which it is overridden
    if kind_of(asked.by) in (Kind.PATH, Kind.WORDS):
        return Deny(Reason.HEADER_FORM_REFUSED, f"{asked.by} names a path that no rule allows")
    return replace(denial, detail=f"{asked.by} asks for a {asked.method} that no rule allows")


def strictest(rule: Rule, others: Iterable[Rule]) -> Rule:
    """`rule`, under the terms of `others` as well: their limits count, too, and of the rest the strictest
    holds. Which credentials count under each of them is for `decide`, which knows who shows what."""
    further = tuple(dict.fromkeys(other for other in others if other is not rule))
    if not further:
        return rule
    terms = (rule, *further)
    return replace(
        rule,
        limits=tuple(_limits(rule, further)),
        handles_in_body=max((each.handles_in_body for each in terms), key=list(HandlesInBody).index),
        max_request_bytes=min(
            (each.max_request_bytes for each in terms if each.max_request_bytes), default=0
        ),
        max_response_bytes=min(
            (each.max_response_bytes for each in terms if each.max_response_bytes), default=0
        ),
        asking=strictest_asking(each.asking for each in terms),
        further=further,
    )


def _limits(rule: Rule, further: tuple[Rule, ...]) -> Iterator[Limit]:
    """Its own, and those of other rules by the name of theirs. What is limited per credential is one bucket
    for all rules: it is spent once, by the strictest of them."""
    shared: dict[tuple[LimitKind, float], Limit] = {}
    for each in (rule, *further):
        for limit in each.limits:
            if limit.per is not LimitScope.CREDENTIAL:
                yield limit if each is rule else replace(limit, of=each.name)
                continue
            known = shared.get((limit.kind, limit.period), limit)
            least = replace(limit, count=min(known.count, limit.count), burst=min(known.burst, limit.burst))
            shared[limit.kind, limit.period] = least
    yield from shared.values()


def fits(rule: Rule, destination: Destination, head: RequestHead) -> Reason | None:
    """Why `rule`, which names the destination's host, would not allow the request if it were alone; None
    when it would."""
    alone = Policy("", "", "", rules=(replace(rule, hosts=(HostPattern(destination.host),)),))
    found = match(alone, destination, head)
    return found.reason if isinstance(found, Deny) else None


def host_allowed(policy: Policy, host: str, port: int, tls: bool) -> Deny | None:
    """None when some rule could allow a request to the canonical `host` at `port`.

    For CONNECT and ClientHello: before a certificate is minted or a name resolved (I6).
    """
    closest = Reason.HOST_NOT_ALLOWED
    for rule in rules_for_host(policy, host):
        if not (tls or rule.plain_http):
            reason = Reason.PLAIN_HTTP_REFUSED
        elif port not in rule.ports:
            reason = Reason.PORT_NOT_ALLOWED
        else:
            return None
        if _PROGRESS.index(reason) > _PROGRESS.index(closest):
            closest = reason
    return Deny(closest)


def tunnel_rule(policy: Policy, host: str, port: int) -> Rule | None:
    """The rule that lets TLS to `host` and `port` through unopened, or None: then it is intercepted.

    File order decides, as everywhere; `policy.file` refuses files in which a host is in both kinds.
    """
    for rule in rules_for_host(policy, host):
        if port in rule.ports:
            return rule if rule.tunnel else None
    return None


def credential_allows(credential: Credential, destination: Destination, head: RequestHead) -> Deny | None:
    """None when the credential may travel with this request; the rule has allowed the request already."""
    if not any(host.matches(destination.host) for host in credential.hosts):
        return _wrong_place(credential, "host")
    if destination.scheme != "https" and not credential.plain_http:
        return Deny(Reason.PLAIN_HTTP_REFUSED, f"credential {credential.name}")
    if not (credential.methods or credential.paths):
        return None
    steering = read_steering(destination, head)
    asked = steering.asked(head.path) if steering is not None else (Asked(head.method, head.path, ""),)
    for each in asked:
        if each.host or not each.needed:
            continue
        if credential.methods and each.method not in credential.methods:
            return _wrong_place(credential, "method")
        if credential.paths and not _path_allowed(credential, each.path):
            return _wrong_place(credential, "path")
    return None


def _path_allowed(credential: Credential, path: str) -> bool:
    path = canonical_path(path)
    if check_target(path, slashes=True) or ambiguous(path):
        return False
    parts = path.split("/")[1:]
    return (_any_encoded if ENCODED_SLASH in path else _any_path)(credential.paths, parts)


def _any_path(patterns: tuple[PathPattern, ...], parts: list[str]) -> bool:
    for pattern in patterns:  # noqa: SIM110 (see matches_segments)
        if pattern.matches_segments(parts):
            return True
    return False


def _any_encoded(patterns: tuple[PathPattern, ...], parts: list[str]) -> bool:
    return any(pattern.matches_encoded(parts) for pattern in patterns)


def _wrong_place(credential: Credential, what: str) -> Deny:
    return Deny(Reason.HANDLE_WRONG_HOST, f"credential {credential.name} is not for this {what}", alarm=True)
