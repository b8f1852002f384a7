"""Whether what happened is what a case expects: every difference, in words."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tests.corpus.driver import Outcome
from tests.corpus.echoes import found_in
from tests.corpus.namespace import NAMES
from tests.corpus.schema import Case, Expect, Seen
from tests.corpus.world import Arrival

_BETWEEN_CHUNKS: Final = re.compile(rb"\r\n[0-9A-Fa-f]{1,8}\r\n")
"""An origin reads a body without them, however it was cut."""
MAY_SEE = {
    "vendor": "api.vendor.example",
    "second": "second.example",
    "third": "second.example",
    "odd": "second.example",
}
"""Whose origin may see which secret; nobody else may, whatever a case says."""

LEAKED = "LEAKED: "
"""What a secret that somebody saw who may not is marked with, of a proxy that is not ours."""


def judge(
    case: Case,
    outcome: Outcome,
    arrivals: list[Arrival],
    records: list[dict[str, Any]],
    secrets: Mapping[str, str],
    expand: Any,
) -> list[str]:
    """What is wrong; empty when the case holds."""
    expect = case.expect
    return [
        *_never(outcome, arrivals, secrets),
        *_answered(expect, outcome),
        *_recorded(expect, records),
        *_arrived(expect, arrivals, expand),
        *_seen(
            "the sandbox", expect.sandbox, bytes(outcome.seen) + "".join(outcome.printed).encode(), expand
        ),
    ]


def asked_for(case: Case, asked: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The names that were resolved, if the case says which."""
    names = sorted({name for name, _ in asked})
    if case.expect.dns is not None and names != sorted(case.expect.dns):
        yield f"{names} were resolved, not {case.expect.dns}"


def safe(
    case: Case, outcome: Outcome, arrivals: list[Arrival], secrets: Mapping[str, str], expand: Any
) -> list[str]:
    """The same for a proxy whose words and records are its own: only what left and what came back counts."""
    expect = case.expect
    wrong = [LEAKED + each for each in _never(outcome, arrivals, secrets)]
    if not expect.refuses:
        if not any(answer.status < 400 for answer in outcome.answers):
            wrong.append("what is allowed was not answered")
    elif expect.origin in (None, "nothing"):
        # A connection by itself tells nobody anything: only what came over it counts.
        wrong += [f"{each.address}:{each.port} saw {len(each.data)} bytes" for each in arrivals if each.data]
    else:
        wrong += _arrived(expect, arrivals, expand)
    return wrong


def _never(outcome: Outcome, arrivals: list[Arrival], secrets: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(found_in(bytes(outcome.seen) + "".join(outcome.printed).encode(), secrets)):
        yield f"the sandbox saw {name}"
    for arrival in arrivals:
        for name, value in secrets.items():
            if value.encode() in arrival.data and arrival.address not in NAMES[MAY_SEE[name]]:
                yield f"{arrival.address}:{arrival.port} saw the secret {name}"
        if b"cch_ey" in arrival.data.partition(b"\r\n\r\n")[0]:
            yield f"{arrival.address}:{arrival.port} saw a handle in a head"


def _answered(expect: Expect, outcome: Outcome) -> Iterator[str]:
    if outcome.hung != (expect.verdict == "silence"):
        yield "nothing came in time" if outcome.hung else "there was an answer, or an end"
    if expect.statuses is not None:
        if (statuses := [each.status for each in outcome.answers]) != expect.statuses:
            yield f"statuses {statuses}, not {expect.statuses}"
        return
    last = outcome.answers[-1] if outcome.answers else None
    if expect.verdict == "broken":
        if last is not None and last.whole or last is None and not outcome.cut:
            yield "the answer came to a clean end, or none was cut off"
        return
    if expect.verdict in ("cut", "silence"):
        if last is not None:
            yield f"answered with {last.status} {last.get('coatcheck-reason') or ''}"
        elif expect.verdict == "cut" and not (outcome.cut or outcome.tls_refused):
            yield "not cut off"
        return
    if last is None:
        yield "no answer" + (", the TLS handshake failed" if outcome.tls_refused else "")
        return
    if expect.verdict == "deny" and expect.reason != last.get("coatcheck-reason"):
        yield f"the answer says {last.get('coatcheck-reason')}, not {expect.reason} (status {last.status})"
    if expect.verdict != "deny" and last.get("coatcheck-reason") is not None:
        yield f"refused: {last.get('coatcheck-reason')}"
    wanted = expect.status if expect.status is not None else (None if expect.verdict == "deny" else 200)
    if wanted not in (None, "any", last.status):
        yield f"status {last.status}, not {wanted}"
    if expect.whole not in (None, last.whole):
        yield "the answer came to a clean end" if last.whole else "the answer broke off"


def _recorded(expect: Expect, records: list[dict[str, Any]]) -> Iterator[str]:
    decisions = [each for each in records if each["type"] == "decision"]
    last = decisions[-1] if decisions else None
    outcome = "deny" if expect.refuses else expect.verdict
    wanted: dict[str, Any] = dict(expect.audit)
    if expect.reason is not None or expect.verdict in ("pass", "inject"):
        wanted = {"outcome": outcome, "reason": expect.reason} | wanted
    if wanted and last is None:
        yield "no decision was recorded"
    for name, value in wanted.items():
        if last is not None and (last.get(name) or None) != value:
            yield f"the record says {name}={last.get(name)!r}, not {value!r}"
    for event in expect.events:
        if not any(event.items() <= record.items() for record in records):
            yield f"no record with {event}"


def _arrived(expect: Expect, arrivals: list[Arrival], expand: Any) -> Iterator[str]:
    origin = expect.origin
    if origin is None:
        origin = "nothing" if expect.refuses else Seen(requests=1)
    if origin == "nothing":
        for arrival in arrivals:
            yield f"{arrival.address}:{arrival.port} was reached and saw {len(arrival.data)} bytes"
        return
    requests = sum(len(arrival.heads) for arrival in arrivals)
    if origin.requests not in (None, requests):
        yield f"origins saw {requests} requests, not {origin.requests}"
    if origin.connections not in (None, len(arrivals)):
        yield f"origins saw {len(arrivals)} connections, not {origin.connections}"
    data = b"\n".join(bytes(arrival.data) for arrival in arrivals)
    data += b"\n" + _BETWEEN_CHUNKS.sub(b"", data)
    yield from _seen("an origin", Seen(has=origin.has, lacks=origin.lacks), data, expand)


def _seen(who: str, wanted: Seen, data: bytes, expand: Any) -> Iterator[str]:
    for text in wanted.has:
        if expand(text) not in data:
            yield f"{who} did not see {text!r}"
    for text in wanted.lacks:
        if expand(text) in data:
            yield f"{who} saw {text!r}"
