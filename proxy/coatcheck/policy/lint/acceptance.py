"""Findings that a file's owner accepts, with a reason and until a day: after it, the finding is back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta

from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.models import AcceptedSpec, Document
from coatcheck.policy.file.problem import Finding, Level

LONGEST = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding, and what the file's owner says about it."""

    finding: Finding
    accepted: AcceptedSpec | None = None


def judge(document: Document, findings: Iterable[Finding], today: date) -> Iterator[Judged]:
    """Every finding, accepted or not; and what is wrong with the acceptances themselves."""
    met: set[int] = set()
    for finding in findings:
        about = [at for at, spec in enumerate(document.accepted) if _names(document, finding, spec)]
        met.update(about)
        valid = next((at for at in about if document.accepted[at].until >= today), None)
        if valid is not None:
            yield Judged(finding, document.accepted[valid])
        elif about:
            ended = max(document.accepted[at].until for at in about)
            yield Judged(
                replace(finding, message=f"{finding.message} (accepted until {ended}, which is over)")
            )
        else:
            yield Judged(finding)
    for at, spec in enumerate(document.accepted):
        if at not in met:
            yield Judged(_in_vain(at, spec))
        elif spec.until - today > LONGEST:
            message = f"{spec.finding} is accepted until {spec.until}: more than a year"
            instead = f"write a day until {today + LONGEST}"
            where = ("accepted", at, "until")
            yield Judged(Finding(where, message, instead, Level.WARNING, Code.LONG_LIFETIME))


def _names(document: Document, finding: Finding, spec: AcceptedSpec) -> bool:
    rule, credential = subject(document, finding)
    return finding.code == spec.finding and (spec.rule, spec.credential) == (rule, credential)


def subject(document: Document, finding: Finding) -> tuple[str | None, str | None]:
    """The rule and the credential that a finding is about, by name; at most one of them."""
    match finding.location:
        case ("rules", int(index), *_):
            return document.rules[index].name, None
        case ("credentials", str(name), *_):
            return None, name
        case _:
            return None, None


def _in_vain(at: int, spec: AcceptedSpec) -> Finding:
    where = f'rule "{spec.rule}"' if spec.rule else f"credential {spec.credential}"
    about = f" of {where}" if spec.rule or spec.credential else " of the file as a whole"
    message = f"there is no finding {spec.finding}{about}"
    return Finding(("accepted", at), message, "remove the line", Level.WARNING, Code.ACCEPTED_IN_VAIN)
