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
    """Where in a request the secret is injected: exactly one of these (header goes with value)."""

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
        None,
        description="Letters and digits after the prefix, for clients that count them. Default: a signed "
        "token of about 320 characters.",
    )


class ScrubSpec(Strict):
    off: Line = Field(description="Why responses need not be searched: for this secret, or under this rule.")


class CredentialSpec(Strict):
    secret: Secret = Field(
        description="The secret as store:mount/path#field. Stores: vault (KV version 2), file (below "
        "COATCHECK_SECRETS_DIR), memory (given at the start, for development). A name, never a "
        "value."
    )
    hosts: list[Host] = Field(min_length=1, description="The only hosts that may receive this secret.")
    inject: Annotated[
        list[InjectSpec],
        Field(min_length=1, max_length=5),
        BeforeValidator(_listed, json_schema_input_type=InjectSpec | list[InjectSpec]),
    ] = Field(
        description="Where in a request the secret is injected: one place, or a list of places where clients "
        "of this API differ."
    )
    also: Annotated[list[InjectSpec], Field(min_length=1, max_length=4)] = Field(
        [],
        description="Deprecated: write a list below inject.",
        json_schema_extra={"deprecated": True},
    )
    methods: Annotated[list[Method], Field(min_length=1)] = Field(
        [], description="Methods that this credential may be used with. Default: those of the rule."
    )
    paths: Annotated[list[Path], Field(min_length=1)] = Field(
        [], description="Paths that this credential may be used with. Default: those of the rule."
    )
    env: Env | None = Field(
        None, description="The variable in which the sandbox finds its handle. Default: none."
    )
    shape: ShapeSpec | None = Field(
        None, description="What a handle must look like, for clients that check their key."
    )
    handle: Literal["required", "optional"] = Field(
        "required",
        description="With `optional`, matching requests of the session get the secret without"
        " showing a handle. "
        "Default: required.",
    )
    origins: Annotated[list[Origin], Field(min_length=1)] = Field(
        [], description="Accepted proofs of which sandbox asks. Default: all but bearer."
    )
    isolation: LeastIsolation = Field(
        Isolation.NONE, description="The weakest isolation that a sandbox may have. Default: none."
    )
    plain_http: Literal["i-accept-that-the-secret-travels-in-the-clear"] | None = Field(
        None,
        description="Also inject into http:// requests, which everyone on the network path can read. The"
        " rule "
        "needs plain_http: true as well. Default: no.",
    )
    keep_set_cookie: bool = Field(
        False,
        description="Keep Set-Cookie in authenticated responses; it may be a credential itself. Default: "
        "false.",
    )
    scrub: ScrubSpec | None = Field(
        None,
        description="`{off: reason}` turns off the redaction of this secret from responses. Required for "
        "secrets under 16 bytes, which would match harmless text.",
    )
    revoke_on_theft: bool = Field(
        False,
        description="Revoke the session whose handle is used from another origin, if it would still count in "
        "its own. Default: false.",
    )
    inherit: bool = Field(
        True,
        description="In a forked, restored or woken sandbox, handles that its processes hold stand for its "
        "own grant. With false, only new handles count, and a sandbox that holds one is never "
        "saved. Default: true.",
    )

    @property
    def places(self) -> list[InjectSpec]:
        """All places, however they are written."""
        return [*self.inject, *self.also]


class LimitsSpec(Strict):
    requests: RequestRate | None = Field(
        None, description="How many requests: 60/minute; also /second, /hour, /day."
    )
    burst: Annotated[int, Field(ge=1, le=1_000_000, examples=[10])] | None = Field(
        None, description="Requests at once. Default: the rate's number."
    )
    concurrent: Annotated[int, Field(ge=1, le=100_000, examples=[8])] | None = Field(
        None, description="Requests that run at the same time."
    )
    bytes_up: ByteRate | None = Field(None, description="Bytes of request bodies: 1GiB/hour.")
    bytes_down: ByteRate | None = Field(None, description="Bytes of response bodies: 1GiB/hour.")
    per: Sharing = Field(LimitScope.SESSION, description="What shares the limit. Default: session.")


class AskSpec(Strict):
    """An operator must approve each request under the rule. No answer means denial."""

    wait: Duration | None = Field(
        None,
        description="How long a request is held: at most 10m, and no longer than the client waits."
        " Default: 2m.",
        json_schema_extra={"examples": ["5m"]},
    )
    remember: Duration | None = Field(
        None,
        description="How long an approval may cover the same again, at most 12h; the person who approves "
        "chooses. A denial is never remembered. Default: it covers one request.",
    )
    same: AskedSame = Field(
        Same.REQUEST,
        description="What a remembered approval covers: the same method, host, path and query, with any body "
        "(request), or any request under the rule. Default: request.",
    )
    whose: AskedFor = Field(
        Whose.SESSION, description="Whose requests a remembered approval covers. Default: session."
    )


class RuleSpec(Strict):
    name: RuleName = Field(description="Appears in refusals and audit records; unique in the file.")
    hosts: list[Host] = Field(min_length=1, description="Exact names, or `*.suffix` for all names below one.")
    methods: Annotated[list[Method], Field(min_length=1)] = Field(
        [], description="Methods that are allowed. CONNECT and TRACE cannot be. Required, except for tunnels."
    )
    paths: Annotated[list[Path], Field(min_length=1)] = Field(
        [], description="`/exact`, `/one/*/segment`, `/all/below/**`. Default: every path."
    )
    ports: Annotated[list[Port], Field(min_length=1)] = Field(
        [], description="Default: 443, and 80 with plain_http."
    )
    credentials: Annotated[list[Name], Field(min_length=1)] = Field(
        [],
        description="Which credentials may be used here. If there are any, a request needs a handle of one, "
        "unless one is handle: optional. Default: none.",
    )
    limits: Annotated[
        list[LimitsSpec],
        Field(min_length=1),
        BeforeValidator(_one_or_more, json_schema_input_type=LimitsSpec | list[LimitsSpec]),
    ] = Field(
        [],
        description="One mapping or a list. Without requests, 6000/minute with a burst of 10000 per session "
        "applies as well.",
    )
    plain_http: bool = Field(
        False,
        description="Allow http:// as well; its responses can be changed on the way. A credential is"
        " injected "
        "only if it allows that too. Default: false.",
    )
    websocket: bool = Field(
        False, description="Allow the upgrade to a WebSocket; requires GET. Default: false."
    )
    http2: bool = Field(
        False, description="Use HTTP/2 on both sides where supported; gRPC needs it. Default: false."
    )
    tunnel: bool = Field(
        False,
        description="Pass TLS through without opening it: exact hosts, no credentials, nothing is inspected. "
        "Default: false.",
    )
    handles_in_body: InBody = Field(
        HandlesInBody.REPORT, description="What to do about a handle in a streamed body. Default: report."
    )
    scrub: ScrubSpec | None = Field(
        None,
        description="`{off: reason}`: responses under this rule pass unread, and a `Range` and any "
        "compression reach the upstream. A secret that it echoes then reaches the sandbox. Default: "
        "responses are searched for every secret that the policies of the tenant name.",
    )
    compression: bool = Field(
        False,
        description="Let the upstream compress its responses. Without, searched responses are asked for "
        "uncompressed: how well a page compresses tells what is in it. Default: false.",
    )
    ask: AskSpec | None = Field(
        None,
        description="Hold each request until an operator approves it (`coatcheck approval`). Default: no.",
    )
    max_request: Size | None = Field(
        None, description="The maximum size of one request's body. Default: none."
    )
    max_response: Size | None = Field(
        None, description="The maximum size of one response's body. Default: none."
    )


class FilesystemSpec(Strict):
    """Which files a sandbox's commands may use."""

    allow_write: Annotated[list[Place], Field(max_length=64)] = Field(
        [],
        description="Directories that may be written to, with everything below. Besides them only /tmp, "
        "/var/tmp and /dev/shm are writable. A missing one is created if the command's user could "
        "create it.",
    )
    deny_read: Annotated[list[Place], Field(min_length=1, max_length=64)] = Field(
        [],
        description="Files and directories that cannot be read, with everything below; everything else can.",
    )


class ObserveSpec(Strict):
    """For a limited time, what no rule allows passes without any credential, and is recorded."""

    reason: Line = Field(description="Why sandboxes under this policy may reach any public host for a while.")
    until: Day = Field(
        description="The last day (UTC). After it, requests that no rule allows are refused again."
    )


class AcceptedSpec(Strict):
    """One warning of the linter that the owner accepts for a time. It changes nothing else."""

    finding: FindingCode = Field(
        description="The code of the finding, as `coatcheck policy check` prints it."
    )
    rule: Line | None = Field(None, description="The rule that the finding is about, by name.")
    credential: Name | None = Field(None, description="The credential that the finding is about, by name.")
    reason: Line = Field(description="Why the finding is accepted; a reviewer reads it.")
    until: Day = Field(description="The last day on which the finding is accepted.")


class Document(Strict):
    """A Coatcheck policy: what sandboxes may reach, and which credentials go where. Default deny."""

    version: Literal[1] = Field(description="The version of the format: always 1.")
    owner: Line = Field(
        description="The team that is responsible for this file; recorded in the audit log at each load."
    )
    credentials: Annotated[dict[Name, CredentialSpec], Field(min_length=1)] = Field(
        {},
        description="By name: which secret, which hosts may receive it, and where it is injected. The name "
        "appears in handles, records and `coatcheck run --credential`.",
    )
    rules: Annotated[list[RuleSpec], Field(min_length=1)] = Field(
        [], description="In order: the first that matches decides, and what none matches is refused."
    )
    filesystem: FilesystemSpec | None = Field(
        None,
        description="Which files a sandbox's commands may use, in sandboxes that Coatcheck runs. Default: "
        "what the image's permissions allow.",
    )
    observe: ObserveSpec | None = Field(
        None,
        description="For a limited time, requests that no rule allows pass without credentials and are "
        "recorded. Only on a daemon with the setting `policy_observe`. Default: off.",
    )
    accepted: Annotated[list[AcceptedSpec], Field(min_length=1)] = Field(
        [], description="Warnings of the linter that the owner accepts for a time, each with its reason."
    )
