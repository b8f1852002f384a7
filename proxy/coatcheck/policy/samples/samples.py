"""Requests with the answers that a policy's authors expect: what a file of samples may hold."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from coatcheck.decision.denial import Reason
from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.decision.message import Destination, OriginClass
from coatcheck.decision.session import Isolation
from coatcheck.injectors.spelling import FromText, OneOf, Strict, Wrong
from coatcheck.policy.file.models import LeastIsolation, Line, Name, Origin
from coatcheck.policy.file.problem import PolicyError, Problem
from coatcheck.policy.file.reading import read
from coatcheck.policy.file.validation import findings_of

_FITTING = "write `expect: allow`, with `credentials` if you like, or `expect: deny` with `reason`"


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


class SampleSession(Strict):
    """Whose request it is. Left out: a sandbox that proves itself and is isolated as well as there is."""

    origin: Origin = Field(OriginClass.SOCKET, description="What proves which sandbox asks.")
    isolation: LeastIsolation = Field(Isolation.HARDWARE, description="Isolation of the sandbox.")
    credentials: list[Name] | None = Field(None, description="Those it was granted. Default: all.")


class Sample(Strict):
    """One request and the answer that is expected."""

    name: Line | None = Field(
        None,
        description="What the sample shows, for the reader of a failure.",
        examples=["nothing is deleted"],
    )
    request: Annotated[
        SampleRequest, FromText(sample_request, "POST https://api.openai.com/v1/responses")
    ] = Field(description="METHOD URL; {handle} in the URL marks the place of the handle.")
    websocket: bool = Field(False, description="Whether it asks for the upgrade to a WebSocket.")
    session: SampleSession | None = Field(
        None,
        description="Whose request it is. Default: of a microVM with all credentials.",
    )
    handle: Name | None = Field(None, description="Whose handle the request shows; `none`: no handle.")
    expect: Literal["allow", "deny"] | None = Field(
        None, description="allow or deny; the name of an allowed_* or refused_* file says it, too."
    )
    rule: Line | None = Field(
        None, description="The rule that allows it, or that came closest to it.", examples=["model calls"]
    )
    reason: Annotated[Reason, OneOf(Reason)] | None = Field(None, description="Why it is refused.")
    credentials: list[Name] | None = Field(
        None, description="Of an allowed request: those that may travel with it."
    )
    asks: bool | None = Field(None, description="Whether the request needs an approval.")

    @property
    def fits(self) -> bool:
        """A refusal has a reason; only an allowed request has credentials, or waits for a yes."""
        if self.expect == "deny":
            return self.reason is not None and self.credentials is None and self.asks is None
        return self.expect is not None and self.reason is None

    @property
    def title(self) -> str:
        request = self.request
        where = request.destination.url if request.destination else "(refused host)"
        return self.name or f"{request.method} {where}{request.target}"


class SampleFile(Strict):
    """Samples of one policy."""

    samples: list[Sample] = Field(
        min_length=1, description="Requests, each with the answer that the policy's authors expect."
    )


def read_samples(data: bytes, expect: Literal["allow", "deny"] | None = None) -> list[Sample]:
    """The samples of one file; `expect` is what its name says of all of them. Raises PolicyError."""
    source = read(data)
    try:
        samples = SampleFile.model_validate(source.data).samples
    except ValidationError as error:
        parts: dict[str, type[BaseModel]] = {"": SampleFile, "samples": Sample, "session": SampleSession}
        raise PolicyError(findings_of(error, source, parts)) from None
    problems = []
    for index, sample in enumerate(samples):
        place = source.place(("samples", index))
        if expect is not None and sample.expect not in (None, expect):
            message = f"the file's name says {expect}, the sample says {sample.expect}"
            problems.append(Problem(*place, message, "remove expect, or move it to another file"))
        elif not _told(sample, expect).fits:
            problems.append(Problem(*place, "the sample's answer does not fit together", _FITTING))
    if problems:
        raise PolicyError(problems)
    return [_told(sample, expect) for sample in samples]


def _told(sample: Sample, expect: Literal["allow", "deny"] | None) -> Sample:
    return sample.model_copy(update={"expect": sample.expect or expect})
