"""Under which terms something is allowed: a rule's limits and sizes, a credential's secret and places."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from coatcheck.decision.approval import Asking, Same, Whose
from coatcheck.decision.filesystem import Filesystem
from coatcheck.decision.injection import Injector
from coatcheck.decision.observation import Observation
from coatcheck.decision.policy import (
    Credential,
    HandlesInBody,
    Limit,
    LimitKind,
    LimitScope,
    Rule,
)
from coatcheck.policy.diff.change import Direction
from coatcheck.policy.file.filesystem_review import within

_PERIODS: Final = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86400.0: "day"}
_LAX: Final = (HandlesInBody.REFUSE, HandlesInBody.MASK, HandlesInBody.REPORT)


@dataclass(frozen=True, slots=True)
class Term:
    """One term that differs."""

    direction: Direction
    what: str
    before: str
    after: str


def rule_terms(old: Rule, new: Rule) -> Iterator[Term]:
    """What differs for requests that `old` decided and `new` decides."""
    for kind in LimitKind:
        for scope in LimitScope:
            yield from _limits(kind, scope, _of(old, kind, scope), _of(new, kind, scope))
    for what, before, after in (
        ("bytes of one request", old.max_request_bytes, new.max_request_bytes),
        ("bytes of one answer", old.max_response_bytes, new.max_response_bytes),
    ):
        more = (after or float("inf")) > (before or float("inf"))
        yield from _if(before != after, more, what, _size(before), _size(after))
    was, is_ = old.handles_in_body, new.handles_in_body
    yield from _if(was != is_, _LAX.index(is_) > _LAX.index(was), "handles in bodies", was.value, is_.value)
    for what, lax_before, lax_after in (
        ("answers are not searched for secrets", not old.scrub, not new.scrub),
        ("the upstream may compress answers", old.compression, new.compression),
    ):
        yield from _if(lax_before != lax_after, lax_after, what, _yes(lax_before), _yes(lax_after))
    yield from _asking(old.asking, new.asking)
    if old.http2 != new.http2:
        yield Term(Direction.CHANGES, "HTTP/2", _yes(old.http2), _yes(new.http2))


def _asking(old: Asking | None, new: Asking | None) -> Iterator[Term]:
    """Who is asked less often lets more through; how long a request waits for an answer does not."""
    if old is None or new is None:
        yield from _if(old is not new, new is None, "approval is required", _yes(old), _yes(new))
        return
    was, is_ = (f"{asking.remember:g} s" for asking in (old, new))
    longer = new.remember > old.remember
    yield from _if(old.remember != new.remember, longer, "how long a yes counts", was, is_)
    wider = list(Same).index(new.same) > list(Same).index(old.same)
    yield from _if(
        old.same != new.same, wider, "what a yes is for", f"the same {old.same}", f"the same {new.same}"
    )
    wider = list(Whose).index(new.whose) > list(Whose).index(old.whose)
    yield from _if(
        old.whose != new.whose, wider, "scope of an approval", f"one {old.whose}", f"one {new.whose}"
    )
    if old.wait != new.wait:
        yield Term(
            Direction.CHANGES, "how long an answer is waited for", f"{old.wait:g} s", f"{new.wait:g} s"
        )


def observe_terms(old: Observation | None, new: Observation | None) -> Iterator[Term]:
    """While a policy observes, what no rule allows passes without credentials."""
    was, is_ = (observation.until if observation else 0.0 for observation in (old, new))
    what = "what no rule allows passes, and is recorded"
    yield from _if(was != is_, is_ > was, what, _until(old), _until(new))


def credential_terms(old: Credential, new: Credential) -> Iterator[Term]:
    """What differs in how a credential is used; where it may go is a matter of requests."""
    if old.secret != new.secret:
        # To the hosts that it may go to, another secret than before may go: that is more.
        yield Term(Direction.WIDENS, "the secret", str(old.secret), str(new.secret))
    before, after = _places(old), _places(new)
    for place in after.keys() - before.keys():
        yield Term(Direction.WIDENS, "a place for it", "", place)
    for place in before.keys() - after.keys():
        yield Term(Direction.NARROWS, "a place for it", place, "")
    for place in sorted(before.keys() & after.keys()):
        yield from _place(before[place], after[place])
    for what, lax_before, lax_after in (
        ("Set-Cookie of its answers passes", old.keep_set_cookie, new.keep_set_cookie),
        ("answers are not searched for it", not old.scrub, not new.scrub),
        ("a theft does not end the session", not old.revoke_on_theft, not new.revoke_on_theft),
        ("forked and restored sandboxes may use handles from before", old.inherit, new.inherit),
    ):
        yield from _if(lax_before != lax_after, lax_after, what, _yes(lax_before), _yes(lax_after))
    if old.env != new.env:
        yield Term(Direction.CHANGES, "its variable", old.env or "none", new.env or "none")
    if old.shape != new.shape:
        yield Term(Direction.CHANGES, "the shape of its handles", str(old.shape), str(new.shape))


def filesystem_terms(old: Filesystem | None, new: Filesystem | None) -> Iterator[Term]:
    """What differs in what sandboxes' commands may do with files."""
    if old is None or new is None:
        if old is not new:
            was, is_ = ("set", "the image's own") if old else ("the image's own", "set")
            direction = Direction.WIDENS if old else Direction.NARROWS
            yield Term(direction, "the sandbox's file permissions", was, is_)
        return
    for place in _outside(new.allow_write, old.allow_write):
        yield Term(Direction.WIDENS, "a place that may be written", "", place)
    for place in _outside(old.allow_write, new.allow_write):
        yield Term(Direction.NARROWS, "a place that may be written", place, "")
    for place in _outside(old.deny_read, new.deny_read):
        yield Term(Direction.WIDENS, "a place that cannot be read", place, "")
    for place in _outside(new.deny_read, old.deny_read):
        yield Term(Direction.NARROWS, "a place that cannot be read", "", place)


def _outside(places: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    return [place for place in places if not any(within(place, other) for other in others)]


# --- limits ---------------------------------------------------------------------------------------------


def _of(rule: Rule, kind: LimitKind, scope: LimitScope) -> list[Limit]:
    return [limit for limit in rule.limits if (limit.kind, limit.per) == (kind, scope)]


def _limits(kind: LimitKind, scope: LimitScope, old: list[Limit], new: list[Limit]) -> Iterator[Term]:
    """More at some moment widens, less at some moment narrows; a burst for a rate can do both."""
    what = f"{_KINDS[kind]} of one {scope}" if scope is not LimitScope.RULE else f"{_KINDS[kind]} of the rule"
    before, after = _shown(old), _shown(new)
    if exceeds(new, old):
        yield Term(Direction.WIDENS, what, before, after)
    if exceeds(old, new):
        yield Term(Direction.NARROWS, what, before, after)


def exceeds(some: list[Limit], others: list[Limit]) -> bool:
    """Whether `some`, all of one kind and scope, ever let through more than `others` do.

    A limit lets through `burst + rate * t` in any time t, and several let through the least of that. Against
    one straight line that least, which is concave, is highest above at one of its corners, or far out.
    """
    if not others:
        return False
    if not some:
        return True
    mine = [_line(limit) for limit in some]
    corners = {0.0} | {
        (b[0] - a[0]) / (a[1] - b[1]) for a in mine for b in mine if a[1] > b[1] and b[0] > a[0]
    }
    for burst, rate in map(_line, others):
        if min(line[1] for line in mine) > rate:
            return True
        if any(
            min(line[0] + line[1] * t for line in mine) > (burst + rate * t) * (1 + 1e-12) for t in corners
        ):
            return True
    return False


def _line(limit: Limit) -> tuple[float, float]:
    if limit.kind is LimitKind.CONCURRENT:
        return float(limit.count), 0.0
    return float(limit.burst), limit.count / limit.period


_KINDS: Final = {
    LimitKind.REQUESTS: "requests",
    LimitKind.CONCURRENT: "requests at the same time",
    LimitKind.BYTES_UP: "bytes sent",
    LimitKind.BYTES_DOWN: "bytes received",
}


def _shown(limits: list[Limit]) -> str:
    return " and ".join(_limit(limit) for limit in limits) or "no limit"


def _limit(limit: Limit) -> str:
    if limit.kind is LimitKind.CONCURRENT:
        return str(limit.count)
    amount = str(limit.count) if limit.kind is LimitKind.REQUESTS else _size(limit.count)
    rate = f"{amount}/{_PERIODS.get(limit.period, f'{limit.period:g} s')}"
    return rate if limit.burst == limit.count else f"{rate} (burst {limit.burst})"


def _size(count: int) -> str:
    if not count:
        return "no limit"
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power and count % (1 << power) == 0:
            return f"{count >> power}{unit}"
    return f"{count}B"


# --- places ---------------------------------------------------------------------------------------------


def _places(credential: Credential) -> dict[str, Injector]:
    return {injector.place: injector for injector in credential.injectors}


def _place(old: Injector, new: Injector) -> Iterator[Term]:
    """Two ways that put the secret into one place."""
    before, after = old.terms(), new.terms()
    for what in before:
        match before[what], after[what]:
            case frozenset() as was, frozenset() as is_:
                yield from _words(what, was, is_)
            case int() as was, int() as is_:
                yield from _if(was != is_, is_ > was, what, _size(was), _size(is_))
            case was, is_:
                if was != is_:
                    yield Term(Direction.CHANGES, what, str(was), str(is_))


def _words(what: str, old: frozenset[str], new: frozenset[str]) -> Iterator[Term]:
    """Sets of words in which none means any."""
    before, after = (", ".join(sorted(words)) or "any" for words in (old, new))
    if old and not new <= old or old and not new:
        yield Term(Direction.WIDENS, what, before, after)
    if new and not old <= new or new and not old:
        yield Term(Direction.NARROWS, what, before, after)


def _if(differs: bool, more: bool, what: str, before: str, after: str) -> Iterator[Term]:
    if differs:
        yield Term(Direction.WIDENS if more else Direction.NARROWS, what, before, after)


def _until(observation: Observation | None) -> str:
    return (
        f"until {datetime.fromtimestamp(observation.until, UTC):%Y-%m-%d %H:%M} UTC" if observation else "no"
    )


def _yes(value: object) -> str:
    return "yes" if value else "no"
