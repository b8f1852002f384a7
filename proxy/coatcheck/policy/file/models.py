"""What a policy file may hold: strict frozen models whose fields are parsed by `fields`.

The fields' descriptions are the policy reference: `editor_schema` carries them to editors.
"""

from datetime import date
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, create_model

from coatcheck.decision.approval import Same, Whose
from coatcheck.decision.injection import Injector
from coatcheck.decision.message import OriginClass
from coatcheck.decision.policy import HandlesInBody, HostPattern, LimitScope, PathPattern, SecretRef
from coatcheck.decision.session import Isolation
from coatcheck.injectors import WAYS
from coatcheck.injectors.spelling import FromText, OneOf, Prefix, Size, Strict
from coatcheck.policy.file import fields, quantities
from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.quantities import Rate

IN_THE_CLEAR = "i-accept-that-the-secret-travels-in-the-clear"


type Name = Annotated[str, FromText(fields.name, "openai")]
type Line = Annotated[str, FromText(fields.line_of_text, "platform-security")]
type RuleName = Annotated[str, FromText(fields.rule_name, "model calls")]
type Host = Annotated[HostPattern, FromText(fields.host_pattern, "api.openai.com", ("*.example.org",))]
type Path = Annotated[
    PathPattern, FromText(fields.path_pattern, "/v1/chat/completions", ("/repos/*/issues", "/v1/models/**"))
]
type Method = Annotated[
    str, FromText(fields.method, "POST", ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"))
]
type Secret = Annotated[SecretRef, FromText(fields.secret_ref, "vault:secret/openai#api_key")]
type Env = Annotated[str, FromText(fields.env_name, "OPENAI_API_KEY")]
type RequestRate = Annotated[Rate, FromText(quantities.request_rate, "60/minute", ("1000/hour",))]
type ByteRate = Annotated[Rate, FromText(quantities.byte_rate, "1GiB/hour")]
type Duration = Annotated[float, FromText(quantities.duration, "15m")]
type Place = Annotated[str, FromText(fields.sandbox_path, "/home/agent")]
type Day = Annotated[date, FromText(fields.calendar_date, "2027-03-31")]
type Port = Annotated[int, Field(ge=1, le=65535, examples=[443])]


type Origin = Annotated[OriginClass, OneOf(OriginClass)]
type LeastIsolation = Annotated[Isolation, OneOf(Isolation)]
type Sharing = Annotated[LimitScope, OneOf(LimitScope)]
type AskedSame = Annotated[Same, OneOf(Same)]
type AskedFor = Annotated[Whose, OneOf(Whose)]
type FindingCode = Annotated[Code, OneOf(Code)]
type InBody = Annotated[HandlesInBody, OneOf(HandlesInBody)]


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, dict) else value


class InjectBase(Strict):
    """Where in a request the secret is put: exactly one of these (header goes with value)."""

    def written(self) -> list[str]:
        """The keys that the file has here."""
        return [key for way in WAYS.values() for key in way.keys if getattr(self, key) is not None]

    def ways(self) -> list[str]:
        """The ways that the file names: exactly one, or it is wrong."""
        return [key for key in WAYS if getattr(self, key) is not None]

    def build(self) -> Injector:
        """The one way that is named. ValueError when it is not one."""
        ways = self.ways()
        if len(ways) != 1:
            raise ValueError("inject names no way, or several; review should have said so")
        way = WAYS[ways[0]]
        return way.build({key: getattr(self, key) for key in way.keys})


if TYPE_CHECKING:

    class InjectSpec(InjectBase):
        """`InjectBase` with the keys of every way."""

else:
    _KEYS = {
        key: (kind | None, Field(None, description=text))
        for way in WAYS.values()
        for key, (kind, text) in way.keys.items()
    }
    InjectSpec = create_model("InjectSpec", __base__=InjectBase, __doc__=InjectBase.__doc__, **_KEYS)


class ShapeSpec(Strict):
    prefix: Prefix = Field(description="What clients check that a key begins with.")
    # 22 characters of 62 carry 131 bits: a reference handle must not be guessable.
    length: Annotated[int, Field(ge=22, le=128)] | None = Field(
        None, description="Characters after the prefix, where clients count them."
    )


class ScrubSpec(Strict):
    off: Line = Field(description="Why answers need not be searched for this secret.")


class CredentialSpec(Strict):
    secret: Secret = Field(description="store:mount/path#field. A name, never a value.")
    hosts: list[Host] = Field(min_length=1, description="The only hosts that this secret may be sent to.")
    inject: Annotated[
        list[InjectSpec],
        Field(min_length=1, max_length=5),
        BeforeValidator(_listed, json_schema_input_type=InjectSpec | list[InjectSpec]),
    ] = Field(
        description="Where in a request it is put: one place, or a list where clients of this API differ."
    )
    also: Annotated[list[InjectSpec], Field(min_length=1, max_length=4)] = Field(
        [],
        description="Deprecated: write a list below inject.",
        json_schema_extra={"deprecated": True},
    )
    methods: Annotated[list[Method], Field(min_length=1)] = Field(
        [], description="Default: what the rule allows."
    )
    paths: Annotated[list[Path], Field(min_length=1)] = Field(
        [], description="Default: what the rule allows."
    )
    env: Env | None = Field(None, description="The variable in which the sandbox finds its handle.")
    shape: ShapeSpec | None = Field(
        None, description="What a handle must look like for clients that check their key."
    )
    handle: Literal["required", "optional"] = Field(
        "required",
        description="required (the default), or optional: the session's matching requests get the secret"
        " without showing a handle.",
    )
    origins: Annotated[list[Origin], Field(min_length=1)] = Field(
        [], description="Accepted proofs of which sandbox asks. Default: all but bearer."
    )
    isolation: LeastIsolation = Field(
        Isolation.NONE, description="The least isolation a sandbox must have. Default: none."
    )
    plain_http: Literal["i-accept-that-the-secret-travels-in-the-clear"] | None = Field(
        None, description="Also put it into http:// requests. Whoever is on the way can read it then."
    )
    keep_set_cookie: bool = Field(False, description="Let cookies of authenticated answers through.")
    scrub: ScrubSpec | None = Field(None, description="Needed for secrets under 16 bytes: {off: reason}.")
    revoke_on_theft: bool = Field(
        False, description="Revoke the session whose handle is used from another origin."
    )
    inherit: bool = Field(
        True,
        description="In a forked or restored sandbox, handles that its processes hold count. Default: true.",
    )

    @property
    def places(self) -> list[InjectSpec]:
        """All places, however they are written."""
        return [*self.inject, *self.also]


class LimitsSpec(Strict):
    requests: RequestRate | None = Field(None, description="How often: 60/minute; also /second, /hour, /day.")
    burst: Annotated[int, Field(ge=1, le=1_000_000, examples=[10])] | None = Field(
        None, description="Requests at once; default: the rate's number."
    )
    concurrent: Annotated[int, Field(ge=1, le=100_000, examples=[8])] | None = Field(
        None, description="Requests that run at the same time."
    )
    bytes_up: ByteRate | None = Field(None, description="Bodies sent: 1GiB/hour.")
    bytes_down: ByteRate | None = Field(None, description="Bodies received: 1GiB/hour.")
    per: Sharing = Field(LimitScope.SESSION, description="Who shares the limit. Default: session.")


class AskSpec(Strict):
    """Somebody must say yes before a request of the rule leaves. Silence is no."""

    wait: Duration | None = Field(
        None, description="How long a request is held for an answer; default 2m, at most 10m."
    )
    remember: Duration | None = Field(
        None, description="How long a yes may count for the same again, at most 12h. Default: once."
    )
    same: AskedSame = Field(
        Same.REQUEST,
        description="What the same is: the request's method and URL, or any request of the rule.",
    )
    whose: AskedFor = Field(Whose.SESSION, description="Scope of an approval.")


class RuleSpec(Strict):
    name: RuleName = Field(description="Stands in refusals and audit records; unique in the file.")
    hosts: list[Host] = Field(min_length=1, description="Exact names, or *.suffix for all names below one.")
    methods: Annotated[list[Method], Field(min_length=1)] = Field(
        [], description="Needed, except for tunnels."
    )
    paths: Annotated[list[Path], Field(min_length=1)] = Field(
        [], description="/exact, /one/*/segment, /all/below/**. Default: every path."
    )
    ports: Annotated[list[Port], Field(min_length=1)] = Field(
        [], description="Default 443, and 80 with plain_http."
    )
    credentials: Annotated[list[Name], Field(min_length=1)] = Field(
        [], description="Which credentials may be used here. With any, a request needs a handle."
    )
    limits: Annotated[
        list[LimitsSpec],
        Field(min_length=1),
        BeforeValidator(_one_or_more, json_schema_input_type=LimitsSpec | list[LimitsSpec]),
    ] = Field([], description="How often and how much. Default: 6000 requests a minute a session.")
    plain_http: bool = Field(
        False, description="Allow http:// as well; its answers can be changed on the way."
    )
    websocket: bool = Field(False, description="Allow the upgrade to a WebSocket; needs GET.")
    http2: bool = Field(False, description="Offer HTTP/2 to the upstream (gRPC needs it).")
    tunnel: bool = Field(
        False, description="Let TLS through unopened: exact hosts, no credentials, nothing is inspected."
    )
    handles_in_body: InBody = Field(
        HandlesInBody.REPORT, description="What happens to a handle found in a body. Default: report."
    )
    ask: AskSpec | None = Field(
        None, description="Hold each request until an operator approves it (`coatcheck approval`)."
    )
    max_request: Size | None = Field(None, description="Bytes a request may stream up.")
    max_response: Size | None = Field(None, description="Bytes an answer may stream down.")


class FilesystemSpec(Strict):
    """What a sandbox's commands may do with its files."""

    allow_write: Annotated[list[Place], Field(max_length=64)] = Field(
        [], description="Directories that may be written, beside /tmp. Nothing else may be."
    )
    deny_read: Annotated[list[Place], Field(min_length=1, max_length=64)] = Field(
        [], description="Files and directories that cannot be read. All else can be."
    )


class ObserveSpec(Strict):
    """For a while, what no rule allows passes without any credential, and is recorded."""

    reason: Line = Field(description="Why sandboxes under this policy may reach any host for a while.")
    until: Day = Field(description="The last day. After it, requests that no rule allows are refused again.")


class AcceptedSpec(Strict):
    """One finding of the linter that the owner lives with for a time. It changes nothing else."""

    finding: FindingCode = Field(description="The finding's code, as `coatcheck policy check` says it.")
    rule: Line | None = Field(None, description="The rule that it is about, by name.")
    credential: Name | None = Field(None, description="The credential that it is about.")
    reason: Line = Field(description="Why it is accepted; a reviewer reads it.")
    until: Day = Field(description="The last day on which the finding is accepted.")


class Document(Strict):
    """A Coatcheck policy: what sandboxes may reach, and which credentials go where. Default deny."""

    version: Literal[1] = Field(description="Of this file's format: always 1.")
    owner: Line = Field(description="The team that answers for this file.")
    credentials: Annotated[dict[Name, CredentialSpec], Field(min_length=1)] = Field(
        {}, description="By name: which secret, where it may go, and where in a request it is put."
    )
    rules: Annotated[list[RuleSpec], Field(min_length=1)] = Field(
        [], description="The first that fits decides; what none fits is refused."
    )
    filesystem: FilesystemSpec | None = Field(
        None, description="For sandboxes that Coatcheck runs. Default: what the image's permissions allow."
    )
    observe: ObserveSpec | None = Field(
        None, description="Allowed only on a daemon with the setting `policy_observe`. Default: off."
    )
    accepted: Annotated[list[AcceptedSpec], Field(min_length=1)] = Field(
        [], description="Findings of the linter that the owner accepts for a time, each with its reason."
    )
