"""What every way to inject a credential says of itself. `coatcheck.injectors` has the ways, one a file.

The decision, the policy's tools and the request path ask these questions and know no way by its name.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import HOP_BY_HOP, RANGES, UNREADABLE_ANSWERS
from coatcheck.decision.message import Destination, Edits, RequestHead

SHORTEST_SCRUBBED_SECRET: Final = 16
"""Bytes. A shorter one would be redacted from answers where it stands by chance."""

EDITED_BY_PLANES: Final = (
    HOP_BY_HOP
    | UNREADABLE_ANSWERS
    | RANGES
    | {
        "accept-encoding",
        "cache-control",
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "pragma",
        "sec-websocket-extensions",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "via",
    }
)
"""Headers that a plane, or a proxy behind it, drops or writes anew: no signature covers them."""

type Term = str | int | frozenset[str]
"""A property of a way that `policy diff` compares: words, of which none means any; a number of bytes, of
which more lets more through; or text, of which neither is more than the other."""


class Location(StrEnum):
    """Where in a head a handle stands."""

    HEADER = "header"
    BASIC = "basic"
    QUERY = "query"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Found:
    """One handle in a head: `before + text + after` is the whole value that it stands in."""

    location: Location
    name: str
    """The header's or query parameter's name as received; empty for a path segment."""
    before: str = field(repr=False)
    text: str = field(repr=False)
    """The bare handle, without a shape's prefix; a reference handle with it. Ask `claims_of` about it."""
    after: str = field(repr=False)
    decoded: bool = False
    """True when it was hidden behind percent-encoding, where no credential is declared."""

    def is_all_but(self, before: str) -> bool:
        """Whether the value is `before` and the handle, and nothing else."""
        return self.before == before and not self.after


@dataclass(slots=True)
class Outgoing:
    """A request before one injection: with the target and body that earlier ones left, and for an injection
    that signs with their headers, too."""

    head: RequestHead
    destination: Destination
    body: bytes | None = field(repr=False)
    """The whole body where `Injector.buffers` asked for it, else None."""
    now: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Injector(ABC):
    """One way to inject a credential, as a policy declares it: where its handle may stand, what takes its
    place, and what that needs. All of it is a function of its arguments."""

    key: ClassVar[str]
    """Its name in policy files."""
    sends_secret: ClassVar[bool] = True
    """False: the secret signs, and stays with us."""
    handle_in_body: ClassVar[bool] = False
    """True: the verdict waits for the body, in which the handle is searched for."""
    signs: ClassVar[bool] = False
    """True: it comes after the other injections of a request, because it covers what they change."""
    alone: ClassVar[bool] = False
    """True: a request with it carries no other credential."""
    beside_others: ClassVar[bool] = True
    """False: its credential declares no second place."""
    needs_handle: ClassVar[bool] = False
    """True: only a handle shows where in a request the secret belongs."""
    aws_keys: ClassVar[bool] = False
    """True: what a sandbox gets is a key pair as AWS metadata services give it."""
    form: ClassVar[str] = "text"
    """What the stored secret must be, in a word or two."""

    # --- where it stands --------------------------------------------------------------------------------

    @abstractmethod
    def stands_at(self, found: Found, glued: str) -> bool:
        """Whether a handle stands exactly where this way declares it. `glued` is the handle's prefix shape,
        which `found.text` does not hold. Handles behind percent-encoding are never asked about."""

    @abstractmethod
    def shown(self, head: RequestHead, value: str) -> RequestHead:
        """`head` as a client sends it that has `value` for its key. Where only the client knows the place,
        `head` itself."""

    @property
    @abstractmethod
    def spot(self) -> tuple[str, str]:
        """What of a request it writes, for comparison with others: a kind and a name."""

    # --- what it does to a request ------------------------------------------------------------------------

    def prepare(self) -> None:  # noqa: B027 - most have nothing to do
        """Called off the request path before a policy with it comes into force: import what is heavy."""

    @abstractmethod
    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        """What changes in the request. `handle` is the value as its client sent it; None: none was shown.

        Everything that `stands_at` saw is checked again. No secret and no handle stands in a Deny.
        """

    def buffers(self, head: RequestHead) -> int:
        """How many bytes of body must be buffered at most for `edit`; 0 when the head is enough."""
        return 0

    def challenge(self) -> str | None:
        """A WWW-Authenticate value for clients that send what they hold only when asked."""
        return None

    # --- its secret ---------------------------------------------------------------------------------------

    def unusable(self, secret: str, scrub: bool) -> Deny | None:
        """Why a stored secret cannot be injected this way; None when it can. Doctor asks that, too."""
        return check_text(secret, scrub)

    def private(self, secret: str) -> tuple[str, ...]:
        """What of the stored secret nobody may see; empty when it cannot be read."""
        return (secret,)

    def minted(self, edits: Edits) -> tuple[str, ...]:
        """What `edit` made with the secret that must not come back either."""
        return ()

    @property
    def outlasts_handle(self) -> bool:
        """Whether what `edit` makes with the secret counts for its request as long as the secret does."""
        return False

    @property
    def basic_username(self) -> str:
        """The user name that is sent with the secret, so that base64 of both is redacted; "" for none."""
        return ""

    # --- what others say of it ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the secret is put, in words: "the header x-api-key"."""

    def terms(self) -> Mapping[str, Term]:
        """What `policy diff` compares between two of the same place, by what it is called there."""
        return {}

    def environment(self, handle: str) -> Mapping[str, str]:
        """Variables that a session's sandbox gets beside the one of the credential's `env`."""
        return {}


def check_text(secret: str, scrub: bool) -> Deny | None:
    """None when `secret` can stand in a request without changing its structure."""
    if not secret:
        return Deny(Reason.SECRET_UNUSABLE, "the secret is empty")
    if not (secret.isascii() and secret.isprintable()):
        if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in secret):
            return Deny(
                Reason.SECRET_UNUSABLE,
                "the secret holds a line break or another control character; "
                "store it again without (`vault kv put … key=-` keeps a final newline)",
            )
        if any(ord(char) > 0xFF for char in secret):
            return Deny(Reason.SECRET_UNUSABLE, "the secret is not latin-1 text")
    if secret[0] == " " or secret[-1] == " ":
        # A header's outer blanks are not part of its value (RFC 9110, 5.5): upstreams would differ.
        return Deny(Reason.SECRET_UNUSABLE, "the secret begins or ends with a blank")
    if scrub and len(secret) < SHORTEST_SCRUBBED_SECRET:
        return Deny(
            Reason.SECRET_UNUSABLE,
            f"a secret shorter than {SHORTEST_SCRUBBED_SECRET} bytes cannot be redacted from "
            "answers safely; store a longer one, or write `scrub: off` with a reason in the policy",
        )
    return None


def only_value(head: RequestHead, name: str) -> str | Deny | None:
    """The value of the one header `name` (lower-case); None when there is none. Upstreams differ in which of
    two they take (I7)."""
    values = [value for key, value in head.headers if key == name]
    if len(values) > 1:
        return Deny(Reason.HEADER_FORM_REFUSED, f"header {name} stands {len(values)} times")
    return values[0] if values else None
