"""`inject: {basic: {username: x-access-token}}`: the password of Basic authentication, as git sends it."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import Field

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import Found, Injector, Location, Outgoing, only_value
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.spelling import Strict, Token, Way


@dataclass(frozen=True, slots=True)
class BasicInjection(Injector):
    """`Authorization: Basic base64(username:secret)`. The handle is the password.

    `username` None keeps the client's own.
    """

    key: ClassVar[str] = "basic"
    username: str | None = None
    realm: str = "coatcheck"

    def stands_at(self, found: Found, glued: str) -> bool:
        _, colon, before = found.before.partition(":")
        return (
            found.location is Location.BASIC
            and found.name == "authorization"
            and colon == ":"
            and before == glued
            and not found.after
        )

    def shown(self, head: RequestHead, value: str) -> RequestHead:
        text = base64.b64encode(f"{self.username or 'user'}:{value}".encode()).decode()
        return replace(head, headers=(*head.headers, ("authorization", f"Basic {text}")))

    @property
    def spot(self) -> tuple[str, str]:
        return "header", "authorization"

    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        value = only_value(request.head, "authorization")
        if isinstance(value, Deny):
            return value
        username = self.username
        if handle is not None or username is None:
            if value is None:
                # git and others send credentials only when they are asked (RFC 7617, 2).
                challenge = f'{self.challenge()}, charset="UTF-8"'
                return Deny(Reason.HANDLE_MISSING, "no Basic credentials", challenge=challenge)
            pair = _decode_basic(value)
            if isinstance(pair, Deny):
                return pair
            if handle is not None and pair[1] != handle:
                return Deny(Reason.HANDLE_MISPLACED, "the Basic password is not exactly the handle")
            username = pair[0] if username is None else username
        if ":" in username:
            return Deny(Reason.PLANE_CANNOT, "a Basic username holds no colon (RFC 7617, 2)")
        token = base64.b64encode(f"{username}:{secret}".encode()).decode("ascii")
        return Edits((("authorization", "Basic " + token),))

    def challenge(self) -> str:
        return f'Basic realm="{self.realm}"'

    @property
    def basic_username(self) -> str:
        return self.username or ""

    @property
    def place(self) -> str:
        return "the password of Basic"

    def terms(self) -> Mapping[str, str]:
        return {"the user name of Basic": self.username or "the client's"}


def _decode_basic(value: str) -> tuple[str, str] | Deny:
    """Username and password, or why two readers could disagree about them (RFC 7617)."""
    scheme, _, token = value.partition(" ")
    refused = Deny(Reason.HANDLE_MALFORMED, "Authorization is not strict Basic: base64 of username:password")
    if scheme.lower() != "basic":
        return refused
    try:
        raw = base64.b64decode(token, validate=True)
        # Lenient decoders accept stray bits in the last character; one text must have one encoding.
        if base64.b64encode(raw).decode("ascii") != token:
            return refused
        text = raw.decode("utf-8")
    except (binascii.Error, ValueError):
        return refused
    username, colon, password = text.partition(":")
    if not colon or not text.isprintable():
        return refused
    return username, password


class BasicSpec(Strict):
    username: Token | None = Field(None, description="User name to send. Default: the client's own is kept.")


def _build(values: Mapping[str, Any]) -> BasicInjection:
    spec: BasicSpec = values["basic"]
    return BasicInjection(spec.username)


WAY = Way(
    keys={
        "basic": (
            BasicSpec,
            "Authorization: Basic; the handle is the password.",
        )
    },
    build=_build,
    parts={"basic": BasicSpec},
    examples={"basic": "basic: {username: x-access-token}"},
    snippets=(
        {
            "label": "password of Basic",
            "description": "git, and APIs with user and token.",
            "body": {"basic": {"username": "${1:x-access-token}"}},
        },
    ),
)
