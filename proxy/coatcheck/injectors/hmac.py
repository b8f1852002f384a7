"""`inject: {hmac: {header: X-Signature, message: "{method}{path}{timestamp}"}}`: requests that are signed.

The key stays here: what leaves is HMAC(key, message) in a header, where `message` is a template over the
request as it leaves. The sandbox shows its handle in that header, or, where clients sign by themselves and
name their key, in the key's header; whatever they signed with is replaced.
"""

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from hmac import digest
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import BODY_DIGESTS
from coatcheck.decision.injection import EDITED_BY_PLANES, Found, Injector, Location, Outgoing, only_value
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.spelling import (
    FromText,
    HeaderName,
    OneOf,
    Size,
    Strict,
    Token,
    Way,
    Wrong,
    template,
)

SIGNATURE: Final = "{signature}"
FIELDS: Final = ("method", "path", "query", "host", "timestamp", "body", "body_sha256")
"""What a message may name, beside `header:NAME`."""

_PLACE: Final = re.compile(r"\{([a-z0-9_]+|header:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128})\}")
_LATEST: Final = 253_402_300_799.0
"""The last second that RFC 3339 can write."""


class Algorithm(StrEnum):
    SHA256 = "sha256"
    SHA512 = "sha512"


class Encoding(StrEnum):
    HEX = "hex"
    BASE64 = "base64"


class TimestampFormat(StrEnum):
    UNIX = "unix"
    UNIX_MS = "unix_ms"
    RFC3339 = "rfc3339"


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The header that says when a request was signed. It is set, whatever the client wrote there."""

    header: str
    format: TimestampFormat = TimestampFormat.UNIX

    def at(self, now: float) -> str | None:
        """None: no time that could be written."""
        if not 0.0 <= now <= _LATEST:
            return None
        match self.format:
            case TimestampFormat.UNIX:
                return str(int(now))
            case TimestampFormat.UNIX_MS:
                return str(int(now * 1000))
            case TimestampFormat.RFC3339:
                return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _pieces(message: str) -> tuple[tuple[str, str], ...]:
    """Texts, each with the name of the field after it; none after the last."""
    texts_and_names = [*_PLACE.split(message), ""]
    return tuple(zip(texts_and_names[::2], texts_and_names[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class KeyId:
    """The header in which clients name their key: the handle stands there, and `value` takes its place."""

    header: str
    value: str


@dataclass(frozen=True, slots=True)
class HmacInjection(Injector):
    """HMAC(secret, message), encoded, in `header`: its value is `template` with `{signature}` filled in."""

    key: ClassVar[str] = "hmac"
    signs: ClassVar[bool] = True
    beside_others: ClassVar[bool] = False
    header: str
    message: str
    template: str = SIGNATURE
    algorithm: Algorithm = Algorithm.SHA256
    encoding: Encoding = Encoding.HEX
    timestamp: Timestamp | None = None
    key_id: KeyId | None = None
    max_bytes: int = 1_048_576
    """Of a body that the message covers."""
    pieces: tuple[tuple[str, str], ...] = field(init=False, compare=False, repr=False)
    """`message`, parsed: a text, and the field that follows it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", _pieces(self.message))

    # --- where the handle stands ------------------------------------------------------------------------

    def stands_at(self, found: Found, glued: str) -> bool:
        name, before, after = self._handle_place
        left, right = before + glued, after
        return (
            found.location is Location.HEADER
            and found.name == name
            and found.before == left
            and found.after == right
        )

    def shown(self, head: RequestHead, value: str) -> RequestHead:
        name, before, after = self._handle_place
        return replace(head, headers=(*head.headers, (name, f"{before}{value}{after}")))

    @property
    def spot(self) -> tuple[str, str]:
        return "header", self._handle_place[0]

    @property
    def _handle_place(self) -> tuple[str, str, str]:
        """The header, and what stands before and after the handle in it."""
        if self.key_id is not None:
            return self.key_id.header, "", ""
        before, _, after = self.template.partition(SIGNATURE)
        return self.header, before, after

    # --- what is signed ----------------------------------------------------------------------------------

    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        refused = self._refused(request, handle)
        if refused is not None:
            return refused
        own: dict[str, str] = {}
        if self.key_id is not None:
            own[self.key_id.header] = self.key_id.value
        if self.timestamp is not None:
            time = self.timestamp.at(request.now)
            if time is None:
                return Deny(Reason.PLANE_CANNOT, "the clock shows no time that could be signed")
            own[self.timestamp.header] = time
        host = request.destination.url.partition("://")[2]
        if "host" in self._fields:
            own["host"] = host  # also where HTTP/2's :authority would be sent: what is signed is what is sent
        message = self._message(request, own, host)
        if isinstance(message, Deny):
            return message
        raw = digest(secret.encode(), message, self.algorithm.value)
        text = raw.hex() if self.encoding is Encoding.HEX else b64encode(raw).decode("ascii")
        return Edits(((self.header, self.template.replace(SIGNATURE, text)), *own.items()))

    def buffers(self, head: RequestHead) -> int:
        return self.max_bytes if self._signs_body else 0

    def minted(self, edits: Edits) -> tuple[str, ...]:
        """The signature: within its upstream's window, it would count for this request once more."""
        before, _, after = self.template.partition(SIGNATURE)
        values = [value for name, value in edits.set_headers if name == self.header]
        return tuple(value[len(before) : len(value) - len(after)] for value in values)

    @property
    def outlasts_handle(self) -> bool:
        """Without a signed time, each repetition of the request has the same signature."""
        return "timestamp" not in self._fields

    @property
    def _fields(self) -> frozenset[str]:
        return frozenset(name for _, name in self.pieces if name)

    @property
    def _signs_body(self) -> bool:
        return bool(self._fields & {"body", "body_sha256"})

    def _refused(self, request: Outgoing, handle: str | None) -> Deny | None:
        """Why the request cannot be signed in one reading, or shows no handle where it should."""
        head = request.head
        for name in {self.header, *(each.header for each in (self.timestamp, self.key_id) if each)}:
            value = only_value(head, name)
            if isinstance(value, Deny):
                return value
        name, before, after = self._handle_place
        shown = head.get(name)
        if handle is not None and shown != f"{before}{handle}{after}":
            if shown is None:
                return Deny(Reason.HANDLE_MISSING, f"no header {name}")
            return Deny(Reason.HANDLE_MISPLACED, f"header {name} is not exactly the handle")
        target = head.target
        if not (target.isascii() and target.isprintable()) or set(" #") & set(target):
            return Deny(Reason.PATH_FORM_REFUSED, "blank, control character or # in the target")
        if self._signs_body and not head.end_stream:
            if request.body is None:
                return Deny(Reason.PLANE_CANNOT, "the plane did not buffer the body")
            if len(request.body) > self.max_bytes:
                return Deny(Reason.BODY_TOO_LARGE, f"more than {self.max_bytes} bytes to sign")
        return None

    def _message(self, request: Outgoing, own: Mapping[str, str], host: str) -> bytes | Deny:
        """The bytes that are signed: every field as it leaves."""
        head, body = request.head, request.body or b""
        parts: list[bytes] = []
        for text, name in self.pieces:
            parts.append(text.encode())
            match name:
                case "":
                    value = b""
                case "method":
                    value = head.method.encode()
                case "path":
                    value = head.path.encode()
                case "query":
                    value = head.query.encode()
                case "host":
                    value = host.encode()
                case "timestamp" if self.timestamp is not None:
                    value = own[self.timestamp.header].encode()
                case "body":
                    value = body
                case "body_sha256":
                    value = hashlib.sha256(body).hexdigest().encode()
                case _:
                    header = name.partition(":")[2]
                    sent = own.get(header) or only_value(head, header)
                    if isinstance(sent, Deny):
                        return sent
                    if sent is None or not (sent.isascii() and sent.isprintable()):
                        # Bytes that signers decode differently; and a header that is not there signs nothing.
                        return Deny(Reason.HEADER_FORM_REFUSED, f"header {header} to sign is missing or odd")
                    value = sent.encode()
            parts.append(value)
        return b"".join(parts)

    # --- what others say of it ----------------------------------------------------------------------------

    @property
    def place(self) -> str:
        return f"an HMAC signature in the header {self.header}"

    def terms(self) -> Mapping[str, str | int]:
        sent = f"{self.timestamp.header}, {self.timestamp.format}" if self.timestamp else "none"
        named = f"{self.key_id.header}: {self.key_id.value}" if self.key_id else "none"
        return {
            "the signed message": self.message,
            "the form of the signature": f"{self.template}, {self.algorithm}, {self.encoding}",
            "the timestamp beside the signature": sent,
            "the name of the signing key": named,
            "the size of bodies that are signed": self.max_bytes if self._signs_body else 0,
        }


# --- how policy spells it -----------------------------------------------------------------------------------


def signature_template(text: str) -> str:
    """A header's value in which `{signature}` stands for the signature, once."""
    return template(text, SIGNATURE)


def message_template(text: str) -> str:
    """What is signed: text, line breaks, and fields in braces; header names in lower case."""
    pieces = _pieces(text)
    rest, fields = "".join(plain for plain, _ in pieces), [name for _, name in pieces if name]
    known = (*FIELDS, "header:NAME")
    if "{" in rest or "}" in rest or not rest.replace("\n", "").isprintable() or not text.isascii():
        raise Wrong(
            "the message is printable ASCII, line breaks and fields in braces",
            'write it like "{method}\\n{path}\\n{body_sha256}"',
        )
    for name in fields:
        header = name.partition(":")[2].lower()
        if not header and name not in FIELDS:
            raise Wrong(f"there is no field {{{name}}}", "write one of: " + ", ".join(known))
        if header == "host":
            raise Wrong("the Host header is the field {host}", "write {host}")
        if header in BODY_DIGESTS:
            raise Wrong(
                f"header {header} is removed when a credential changes the body, so it cannot be signed",
                "write {body_sha256}",
            )
        if header in EDITED_BY_PLANES:
            raise Wrong(
                f"header {header} may be edited on its way, so it cannot be signed",
                "leave it out of the message",
            )
    if not fields:
        raise Wrong("the message names nothing of the request", f"write one of: {', '.join(known)}")
    return "".join(plain + (f"{{{name.lower()}}}" if name else "") for plain, name in pieces)


type Message = Annotated[str, FromText(message_template, "{method} {path} {timestamp} {body_sha256}")]
type SignatureTemplate = Annotated[str, FromText(signature_template, "sha256={signature}")]


class TimestampSpec(Strict):
    header: HeaderName = Field(description="The header that says when the request was signed.")
    format: Annotated[TimestampFormat, OneOf(TimestampFormat)] = Field(
        TimestampFormat.UNIX, description="Seconds, milliseconds or a date in UTC. Default: unix."
    )


class KeyIdSpec(Strict):
    header: HeaderName = Field(description="The header in which clients name their key: the handle.")
    value: Token = Field(description="The key's real name, which is no secret.")


class HmacSpec(Strict):
    header: HeaderName = Field(description="Name of the header that carries the signature.")
    value: SignatureTemplate = Field(
        SIGNATURE, description="Template of the header's value. Default: {signature}."
    )
    algorithm: Annotated[Algorithm, OneOf(Algorithm)] = Field(
        Algorithm.SHA256, description="Hash function. Default: sha256."
    )
    encoding: Annotated[Encoding, OneOf(Encoding)] = Field(
        Encoding.HEX, description="How the signature is written. Default: hex."
    )
    message: Message = Field(
        description="What is signed: text and line breaks with {method}, {path}, {query}, {host},"
        " {timestamp}, {body}, {body_sha256} and {header:NAME}."
    )
    timestamp: TimestampSpec | None = Field(
        None, description="How the time of signing is sent. Default: not at all."
    )
    key_id: KeyIdSpec | None = Field(
        None,
        description="The header that names the key. Default: the handle is in the signature's header.",
    )
    max: Size = Field(1 << 20, description="The largest body that is signed. Default: 1MiB.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        fields = {name for _, name in _pieces(self.message)}
        if "timestamp" in fields and self.timestamp is None:
            raise _wrong("the message has {timestamp}, and no header sends it", "add timestamp: {header: …}")
        headers = [self.header, *(each.header for each in (self.timestamp, self.key_id) if each is not None)]
        if len(set(headers)) != len(headers):
            raise _wrong("signature, timestamp and key have one header", "give each its own header")
        if f"header:{self.header}" in fields:
            raise _wrong("the message has the signature's own header", f"remove {{header:{self.header}}}")
        return self


def _wrong(message: str, instead: str) -> PydanticCustomError:
    return PydanticCustomError("wrong", "{message}", {"message": message, "instead": instead})


def _build(values: Mapping[str, Any]) -> HmacInjection:
    spec: HmacSpec = values["hmac"]
    return HmacInjection(
        header=spec.header,
        message=spec.message,
        template=spec.value,
        algorithm=spec.algorithm,
        encoding=spec.encoding,
        timestamp=Timestamp(spec.timestamp.header, spec.timestamp.format) if spec.timestamp else None,
        key_id=KeyId(spec.key_id.header, spec.key_id.value) if spec.key_id else None,
        max_bytes=spec.max,
    )


WAY = Way(
    keys={"hmac": (HmacSpec, "An HMAC signature over the request; the secret is its key.")},
    build=_build,
    parts={"hmac": HmacSpec, "timestamp": TimestampSpec, "key_id": KeyIdSpec},
    examples={
        "hmac": 'hmac: {header: X-Signature, message: "{method}\\n{path}\\n{body_sha256}"}',
        "message": 'message: "{method}\\n{path}\\n{body_sha256}"',
        "timestamp": "timestamp: {header: X-Timestamp, format: unix}",
        "key_id": "key_id: {header: X-Api-Key, value: the-key-s-name}",
    },
    snippets=(
        {
            "label": "HMAC signature",
            "description": "A header with a signature over method, path, time and body.",
            "body": {
                "hmac": {
                    "header": "${1:X-Signature}",
                    "message": "${2:{method\\}{path\\}{timestamp\\}{body_sha256\\}}",
                    "timestamp": {"header": "${3:X-Timestamp}", "format": "${4:unix}"},
                }
            },
        },
    ),
)
