"""The linter: everything about a policy that a reviewer should look at, without any file or clock."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import chain

from coatcheck.decision.policy import Policy
from coatcheck.policy.diff.cells import TooComplex
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.loading import check_policy
from coatcheck.policy.file.models import Document
from coatcheck.policy.file.problem import Finding, Level, Location, PolicyError, Problem
from coatcheck.policy.file.reading import read
from coatcheck.policy.file.review import review
from coatcheck.policy.lint.acceptance import judge
from coatcheck.policy.lint.document import lint_document
from coatcheck.policy.lint.requests import lint_requests
from coatcheck.policy.samples.samples import Sample
from coatcheck.policy.samples.trial import try_sample


@dataclass(frozen=True, slots=True)
class Linted:
    """One finding at its place; `accepted` when the file's owner lives with it today."""

    problem: Problem
    code: Code
    accepted: str = ""
    """The owner's reason."""


def lint(
    name: str, data: bytes, today: date, samples: Sequence[Sample] | None
) -> tuple[Policy | None, list[Linted]]:
    """The policy, None if a daemon would not load it, and all findings in the order of the file.

    `samples` None: there is no file of them. `today` decides which acceptances are over.
    """
    try:
        policy = check_policy(name, data).policy
    except PolicyError as error:
        return None, [Linted(problem, Code.NOT_LOADED) for problem in error.problems]
    source = read(data)
    document = Document.model_validate(source.data)
    found = _once(chain(review(document), lint_document(document, today), _requests(policy)))
    found += _samples(policy, samples)
    linted = []
    for judged in judge(document, found, today):
        finding = judged.finding
        line, column = source.place(finding.location, key=len(finding.location) <= 2)
        problem = Problem(line, column, finding.message, finding.instead, finding.level, code=finding.code)
        reason = judged.accepted.reason if judged.accepted else ""
        linted.append(Linted(problem, Code(finding.code), reason))
    return policy, sorted(linted, key=lambda each: each.problem)


def _once(findings: Iterator[Finding]) -> list[Finding]:
    """One finding a place and code: a file that was read and a request that was asked may say the same."""
    kept: dict[tuple[Location, str], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.location, finding.code), finding)
    return list(kept.values())


def _requests(policy: Policy) -> list[Finding]:
    try:
        return list(lint_requests(policy))
    except TooComplex as problem:
        message = f"{problem}: the deciding rule cannot be determined"
        return [Finding(("rules",), message, problem.hint, Level.WARNING, Code.RULE_NEVER_REACHED)]


def _samples(policy: Policy, samples: Sequence[Sample] | None) -> list[Finding]:
    """Rules that no sample shows at work. In a tunnel no request is seen, so it can have none."""
    shown = [rule for rule in policy.rules if not rule.tunnel]
    if not shown:
        return []
    instead = f"add samples/{policy.name}.yaml: requests with the answers that you expect"
    if samples is None:
        message = "no samples: nothing shows what this policy must allow and refuse"
        return [Finding(("rules",), message, instead, Level.WARNING, Code.NO_SAMPLE)]
    found = []
    tried = [try_sample(policy, sample) for sample in samples if sample.expect == "allow"]
    covered = {trial.rule for trial in tried if trial.reason is None}
    for index, rule in enumerate(policy.rules):
        if rule in shown and rule.name not in covered:
            message = f'no sample shows what "{rule.name}" allows'
            hint = f'add one to samples/{policy.name}.yaml with `expect: allow` and `rule: "{rule.name}"`'
            found.append(Finding(("rules", index, "name"), message, hint, Level.WARNING, Code.NO_SAMPLE))
    if not any(sample.expect == "deny" for sample in samples):
        message = "no sample shows what this policy refuses"
        found.append(Finding(("rules",), message, instead, Level.WARNING, Code.NO_SAMPLE))
    return found


def located(linted: Linted, file: str) -> Linted:
    """The same, with the file's name."""
    return replace(linted, problem=replace(linted.problem, file=file))
