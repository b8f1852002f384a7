"""`coatcheck policy replay`: the decisions of audit logs, held against other policies, in bounded memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coatcheck.decision.policy import Policy
from coatcheck.decision.replay import Change, Question, Replayed, replay
from coatcheck.telemetry.audit.requests import RecordedRequest, Tally, recorded_requests

MAX_GROUPS: Final = 10_000
"""Kinds of changes that are told apart, about 1 KiB each; a sandbox chooses hosts, and could make more."""

LACKING: Final = (
    "limits are not simulated: they depend on when requests came and on what was let through",
    "headers and bodies are not in the log: an Upgrade, a method override, a handle in a body",
    "a handle is taken to have stood where the new policy expects it",
    "whether a rule's `ask` would be approved is not known, nor whether the old rule asked",
    "an injected credential is assumed to have had a handle, which `handle: optional` does not need",
    "a refused request is taken to have shown no handle, unless the refusal was about one",
    "what a session was granted is not in the log, nor its isolation",
)
"""What no replay can be exact about, for people to read beside its result."""

TELLING: Final = (Change.REFUSES, Change.ALLOWS, Change.UNKNOWN, Change.RULE, Change.REASON)
"""The order in which changes are told; the others are only counted."""


@dataclass(slots=True)
class Group:
    """Requests that differ in path only, and would change alike."""

    change: Change
    policy: str
    method: str
    destination: str
    now: str
    then: str
    count: int = 0
    example: str = ""
    """The first one's path."""
    request_id: str = ""
    first: float = 0.0
    last: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"change": self.change.value}


@dataclass(slots=True)
class Report:
    """What a replay found."""

    tally: Tally = field(default_factory=Tally)
    counts: dict[Change, int] = field(default_factory=lambda: dict.fromkeys(Change, 0))
    other_policies: int = 0
    """Requests under policies that the candidates do not speak for."""
    groups: dict[tuple[str, ...], Group] = field(default_factory=dict)
    ungrouped: int = 0
    """Changes beyond MAX_GROUPS kinds: counted, and not shown."""

    def told(self) -> list[Group]:
        """The gravest first, then the most frequent."""
        order = {change: place for place, change in enumerate(TELLING)}
        return sorted(
            self.groups.values(), key=lambda g: (order[g.change], -g.count, g.destination, g.method)
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.tally.requests,
            "first": self.tally.first,
            "last": self.tally.last,
            "changes": {change.value: count for change, count in self.counts.items()},
            "other_policies": self.other_policies,
            "groups": [group.as_json() for group in self.told()],
            "not_shown": self.ungrouped,
            "repeated_refusals": self.tally.repeated,
            "unreadable_lines": self.tally.unreadable,
            "not_exact": list(LACKING),
        }


def replay_logs(paths: Iterable[Path], policies: Mapping[str, Policy], *, whole: bool) -> Report:
    """Hold the requests in the audit logs at `paths` against `policies`, by name.

    `whole`: they would replace all policies, so that one which is missing would be gone. FileNotFoundError.
    """
    report = Report()
    for request in recorded_requests(paths, report.tally):
        policy = policies.get(request.policy)
        if policy is None and not whole:
            report.other_policies += 1
            continue
        answer = _replayed(policy, request)
        report.counts[answer.change] += 1
        if answer.change in TELLING:
            _add(report, request, answer)
    return report


def _replayed(policy: Policy | None, request: RecordedRequest) -> Replayed:
    if policy is not None and policy.sha256 == request.policy_hash:
        return Replayed(Change.SAME, "")
    if request.destination is None or not request.policy:
        return Replayed(Change.UNTOUCHED, "")
    asked = Question(
        request.reason,
        request.detail,
        request.rule,
        request.credentials,
        request.method,
        request.destination,
        request.path,
        request.origin,
        request.whole,
    )
    return replay(policy, asked)


def _add(report: Report, request: RecordedRequest, answer: Replayed) -> None:
    now = f"refused, {request.reason}" if request.reason is not None else "allowed"
    now += f", rule {request.rule}" if request.rule else ""
    now += f", with {', '.join(request.credentials)}" if request.credentials else ""
    url = request.destination.url if request.destination is not None else "-"
    key = (answer.change, request.policy, request.method, url, now, answer.then)
    group = report.groups.get(key)
    if group is None:
        if len(report.groups) >= MAX_GROUPS:
            report.ungrouped += 1
            return
        group = Group(answer.change, request.policy, request.method, url, now, answer.then)
        group.example, group.request_id, group.first = request.path, request.request_id, request.at
        report.groups[key] = group
    group.count += 1
    group.last = request.at
