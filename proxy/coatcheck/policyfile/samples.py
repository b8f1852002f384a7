"""Requests with the answers that a policy's authors expect: `policies/samples/*.yaml`.

A sample is judged as a session that was granted every credential of the policy would be.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Policy, Rule, credential_allows, match
from coatcheck.decision.verdict import Deny, Reason
from coatcheck.policyfile.models import FromText, Line, Name, OneOf, Strict
from coatcheck.policyfile.problem import PolicyError, Problem, Wrong
from coatcheck.policyfile.reading import read
from coatcheck.policyfile.validation import findings_of

_FITTING = "write `reason` with deny; `rule` and `credentials` go with allow"


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """`METHOD URL`, taken apart but not repaired: a sample may show what is refused."""

    method: str
    destination: Destination | None
    """None when the URL's authority is refused by its form."""
    target: str


def sample_request(text: str) -> SampleRequest:
    """`POST https://api.openai.com/v1/responses`. Raises Wrong."""
    method, _, url = text.partition(" ")
    scheme, separator, rest = url.partition("://")
    if not method or not separator or scheme not in {"http", "https"}:
        raise Wrong(
            f'"{text}" is not a request', 'write "METHOD URL", such as "GET https://api.github.com/user"'
        )
    authority, slash, target = rest.partition("/")
    try:
        host, port = split_authority(authority, 443 if scheme == "https" else 80)
    except HostRefused:
        return SampleRequest(method, None, slash + target)
    return SampleRequest(method, Destination(scheme, host, port), (slash or "/") + target)


class Sample(Strict):
    """One request and the answer that is expected."""

    name: Line | None = None
    request: Annotated[SampleRequest, FromText(sample_request, "POST https://api.openai.com/v1/responses")]
    websocket: bool = False
    expect: Literal["allow", "deny"]
    rule: Line | None = None
    reason: Annotated[Reason, OneOf(Reason)] | None = None
    credentials: list[Name] | None = None

    @property
    def fits(self) -> bool:
        """A refusal has a reason; only an allowed request has a rule and credentials."""
        if self.expect == "deny":
            return self.reason is not None and self.rule is None and self.credentials is None
        return self.reason is None


class SampleFile(Strict):
    """Samples of one policy."""

    samples: list[Sample] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that was answered otherwise than expected."""

    sample: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.sample}: expected {self.expected}, got {self.got}"


def read_samples(data: bytes) -> list[Sample]:
    """The samples of one file. Raises PolicyError."""
    source = read(data)
    try:
        samples = SampleFile.model_validate(source.data).samples
    except ValidationError as error:
        raise PolicyError(findings_of(error, source, {"": SampleFile, "samples": Sample})) from None
    problems = [
        Problem(*source.place(("samples", index)), "the sample's answer does not fit together", _FITTING)
        for index, sample in enumerate(samples)
        if not sample.fits
    ]
    if problems:
        raise PolicyError(problems)
    return samples


def run_samples(policy: Policy, samples: Iterable[Sample]) -> list[Failure]:
    """What `policy` answers otherwise than its samples expect; empty when all is well."""
    failures: list[Failure] = []
    for sample in samples:
        expected, got = _expected(sample), _answer(policy, sample)
        if expected != got:
            request = sample.request
            where = request.destination.url if request.destination else "(refused host)"
            failures.append(
                Failure(sample.name or f"{request.method} {where}{request.target}", expected, got)
            )
    return failures


def deciding_rule(policy: Policy, sample: Sample) -> str | None:
    """The name of the rule that allows the sample's request; None when it is refused."""
    found = _match(policy, sample)
    return None if found is None or isinstance(found, Deny) else found.name


def _expected(sample: Sample) -> str:
    if sample.expect == "deny":
        return f"deny {sample.reason}"
    rule = f" by {sample.rule}" if sample.rule else ""
    return f"allow{rule}" + _with(sample.credentials)


def _answer(policy: Policy, sample: Sample) -> str:
    request = sample.request
    if request.destination is None:
        return f"deny {Reason.HOST_FORM_REFUSED}"
    head = _head(sample)
    found = match(policy, request.destination, head)
    if isinstance(found, Deny):
        return f"deny {found.reason}"
    usable = [
        name
        for name in found.credentials
        if credential_allows(policy.credentials[name], request.destination, head) is None
    ]
    return (
        "allow"
        + (f" by {found.name}" if sample.rule else "")
        + _with(usable if sample.credentials is not None else None)
    )


def _match(policy: Policy, sample: Sample) -> Rule | Deny | None:
    destination = sample.request.destination
    return match(policy, destination, _head(sample)) if destination is not None else None


def _head(sample: Sample) -> RequestHead:
    headers = (("upgrade", "websocket"),) if sample.websocket else ()
    return RequestHead(sample.request.method, sample.request.target, headers)


def _with(credentials: list[str] | None) -> str:
    return "" if credentials is None else f" with {', '.join(sorted(credentials)) or 'no credential'}"
