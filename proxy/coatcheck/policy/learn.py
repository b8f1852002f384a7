"""`coatcheck policy learn`: a draft from what was recorded, which allows that and nothing more.

One rule for each host, port, set of methods and of credentials, with the very paths that were seen: no method
is allowed on a path on which it was not used, and no line holds a wildcard. No name is resolved. The
reader of the draft decides whether a host that a sandbox asked for belongs there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coatcheck.decision.denial import Reason
from coatcheck.decision.replay import BY_MATCH
from coatcheck.injectors.spelling import Wrong
from coatcheck.policy.file.fields import host_pattern, line_of_text, method, path_pattern
from coatcheck.policy.file.reading import read
from coatcheck.telemetry.audit.requests import RecordedRequest, Tally, recorded_requests
from coatcheck.telemetry.events import Outcome
from coatcheck.telemetry.redaction import printable

MAX_PLACES: Final = 50_000
"""Paths, over all hosts, that are kept while the logs are read: about 20 MiB."""
MAX_PATHS: Final = 200
"""In one rule: what has more is for a person to put into a pattern."""
MAX_SHOWN: Final = 200
"""Comments on what was left out."""

LACK_OF_A_RULE: Final = BY_MATCH - {
    Reason.PATH_FORM_REFUSED,
    Reason.PLAIN_HTTP_REFUSED,
    Reason.POLICY_MISSING,
}


@dataclass(slots=True)
class Seen:
    """How often, when and by whom something was asked for."""

    count: int = 0
    first: float = 0.0
    last: float = 0.0
    sessions: set[str] = field(default_factory=set)
    """At most MANY of them."""
    credentials: set[str] = field(default_factory=set)

    def add(self, request: RecordedRequest) -> None:
        self.count += 1
        self.first = min(self.first or request.at, request.at)
        self.last = max(self.last, request.at)
        if len(self.sessions) < MANY:
            self.sessions.add(request.session)
        self.credentials.update(request.credentials)

    def __str__(self) -> str:
        by = "1 session" if len(self.sessions) == 1 else f"{len(self.sessions)} sessions"
        by = by if len(self.sessions) < MANY else f"{MANY} sessions or more"
        days = f"{_day(self.first)}" + (
            f" to {_day(self.last)}" if _day(self.first) != _day(self.last) else ""
        )
        return f"{self.count} {'request' if self.count == 1 else 'requests'} of {by}, {days}"


MANY: Final = 10

type _Site = tuple[str, int]
"""Host and port."""


@dataclass(slots=True)
class Learned:
    """What logs say. `sites`: path -> method -> how often."""

    tally: Tally = field(default_factory=Tally)
    sites: dict[_Site, dict[str, dict[str, Seen]]] = field(default_factory=dict)
    left_out: dict[str, Seen] = field(default_factory=dict)
    """What cannot be written as a rule, and why."""
    forgotten: int = 0
    """Requests beyond the bounds: a draft without them is smaller, never wider."""
    places: int = 0


def learn(paths: Iterable[Path], *, policy: str | None = None, refused: bool = False) -> Learned:
    """Read the audit logs at `paths`. Of requests under `policy` only, if given.

    Taken are requests that were allowed, those that were let through by observing among them; with `refused`
    also those that were refused for lack of a rule, and for nothing else. FileNotFoundError.
    """
    learned = Learned()
    for request in recorded_requests(paths, learned.tally):
        if policy is not None and request.policy != policy:
            continue
        if request.outcome is not Outcome.DENY or (refused and request.reason in LACK_OF_A_RULE):
            _take(learned, request)
    return learned


def _take(learned: Learned, request: RecordedRequest) -> None:
    why_not = _cannot_be_a_rule(request)
    destination = request.destination
    if why_not or destination is None:
        if why_not not in learned.left_out and len(learned.left_out) >= MAX_SHOWN:
            learned.forgotten += 1
            return
        learned.left_out.setdefault(why_not, Seen()).add(request)
        return
    site = learned.sites.get((destination.host, destination.port), {})
    seen = site.get(request.path, {}).get(request.method)
    if seen is None:
        if learned.places >= MAX_PLACES:
            learned.forgotten += 1
            return
        learned.places += 1
        site = learned.sites.setdefault((destination.host, destination.port), {})
        seen = site.setdefault(request.path, {}).setdefault(request.method, Seen())
    seen.add(request)


def _cannot_be_a_rule(request: RecordedRequest) -> str:
    """Empty when it can; else what it was and why not, in a bounded text."""
    destination = request.destination
    if destination is None:
        return "a request whose host form was refused"
    where = f"{request.method[:20]} {destination.url[:270]}"
    if request.method == "CONNECT":
        if request.outcome is Outcome.DENY:
            return f"{where}: a connection that was refused before a request was seen"
        return f"{where}: a tunnel, in which no request is seen"
    if destination.scheme != "https":
        return f"{where}: plain HTTP, which must be allowed explicitly"
    if not request.whole:
        return f"{where}: paths that the log holds masked or cut"
    try:
        host_pattern(destination.host)
        method(request.method)
        if "*" in request.path:
            return f"{where}: a path with a star, which a rule would read as a wildcard"
        path_pattern(request.path)
    except Wrong as wrong:
        return f"{where}: {wrong.message[:200]}"
    return ""


def draft(learned: Learned, *, owner: str, credentials: bytes = b"") -> str:
    """The draft as YAML, with the reason for each line behind it. `credentials`: a policy file in which the
    credentials are defined; rules whose credentials are not there become comments. Wrong when `owner` is no
    line of text, PolicyError when that file cannot be read."""
    line_of_text(owner)
    known = _definitions(credentials)
    rules = list(_rules(learned))
    usable = [rule for rule in rules if known.keys() >= set(rule.credentials)]
    wanted = sorted({name for rule in usable for name in rule.credentials})
    lines = [
        f"# A draft: learned from {learned.tally.requests} requests, {_span(learned.tally)}.",
        "# It allows only what is listed. Review each line before you put it in force.",
        "version: 1",
        f"owner: {_quoted(owner)}",
    ]
    if wanted:
        lines.append("credentials:")
        lines += [line for name in wanted for line in known[name]]
    if usable:
        lines.append("rules:")
        lines += [line for rule in usable for line in rule.lines()]
    for rule in rules:
        if rule not in usable:
            names = printable(", ".join(rule.credentials))
            lines.append(f"# Left out: nothing says what {names} is (--credentials POLICY).")
            lines += [f"# {printable(line)}" for line in rule.lines()]
    lines += [f"# Left out: {printable(what)} ({seen})." for what, seen in learned.left_out.items()]
    for count, what in (
        (learned.forgotten, "requests beyond the kept number"),
        (learned.tally.repeated, "refusals that the log holds as counts only"),
        (learned.tally.unreadable, "lines that could not be read"),
    ):
        if count:
            lines.append(f"# Left out: {count} {what}.")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Rule:
    host: str
    port: int
    credentials: tuple[str, ...]
    methods: dict[str, Seen]
    paths: dict[str, Seen]
    number: int

    def lines(self) -> Iterator[str]:
        names = f"{'/'.join(self.methods)} {self.host}"[:100]
        yield f"  - name: {_quoted(f'learned {self.number}: {names}')}"
        yield f"    hosts: [{_quoted(self.host)}]  # {_sum(self.paths.values())}"
        if self.port != 443:
            yield f"    ports: [{self.port}]  # where it was asked for"
        yield "    methods:"
        for name, seen in self.methods.items():
            yield f"      - {_quoted(name)}  # {seen}"
        yield "    paths:"
        for path, seen in list(self.paths.items())[:MAX_PATHS]:
            yield f"      - {_quoted(path)}  # {seen}"
        if len(self.paths) > MAX_PATHS:
            yield f"      # and {len(self.paths) - MAX_PATHS} more paths are left out: is there a pattern?"
        if self.credentials:
            yield f"    credentials: [{', '.join(self.credentials)}]  # as it was injected"


def _rules(learned: Learned) -> Iterator[_Rule]:
    """Paths on which the same methods were used with the same credentials are one rule: with more in it, a
    rule would allow a method on a path, or a credential with a method, that nobody used so."""
    number = 0
    for (host, port), paths in sorted(learned.sites.items()):
        rules: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, dict[str, Seen]]] = {}
        for path, methods in sorted(paths.items()):
            alike: dict[tuple[str, ...], dict[str, Seen]] = {}
            for name, seen in sorted(methods.items()):
                alike.setdefault(tuple(sorted(seen.credentials)), {})[name] = seen
            for credentials, named in alike.items():
                rules.setdefault((credentials, tuple(named)), {})[path] = named
        for (credentials, names), group in sorted(rules.items()):
            number += 1
            yield _Rule(
                host,
                port,
                credentials,
                {name: _sum(methods[name] for methods in group.values()) for name in names},
                {path: _sum(methods.values()) for path, methods in group.items()},
                number,
            )


def _sum(parts: Iterable[Seen]) -> Seen:
    whole = Seen()
    for part in parts:
        whole.count += part.count
        whole.first = min(whole.first or part.first, part.first)
        whole.last = max(whole.last, part.last)
        whole.sessions = set(sorted(whole.sessions | part.sessions)[:MANY])
    return whole


def _definitions(data: bytes) -> dict[str, list[str]]:
    """Each credential of a policy file, as its lines stand there. PolicyError."""
    if not data:
        return {}
    source = read(data)
    text = data.decode("utf-8-sig").splitlines()
    starts = sorted((place[0], location) for location, place in source.keys.items() if len(location) <= 2)
    found: dict[str, list[str]] = {}
    for (line, location), (end, _) in zip(starts, [*starts[1:], (len(text) + 1, ())], strict=True):
        if len(location) == 2 and location[0] == "credentials":
            found[str(location[1])] = [each for each in text[line - 1 : end - 1] if each.strip()]
    return found


def _quoted(text: str) -> str:
    """A YAML double-quoted scalar; what comes here is printable."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _day(at: float) -> str:
    return datetime.fromtimestamp(min(max(at, 0.0), 253_402_300_799.0), UTC).strftime("%Y-%m-%d")


def _span(tally: Tally) -> str:
    return f"{_day(tally.first)} to {_day(tally.last)}" if tally.requests else "none"
