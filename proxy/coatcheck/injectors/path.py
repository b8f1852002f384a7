"""`inject: {path: {prefix: bot}}`: one whole segment of the path, as Telegram has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from pydantic import Field

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import Found, Injector, Location, Outgoing
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.spelling import PathPrefix, Strict, Way

_PCHAR = "!$&'()*+,;=:@"
"""What a path segment may hold unencoded besides letters, digits and `-._~` (RFC 3986, 3.3). Telegram's
`bot123:abc` must keep its colon."""


@dataclass(frozen=True, slots=True)
class PathInjection(Injector):
    """One path segment is `prefix + handle`, e.g. prefix `bot` for `/bot<handle>/sendMessage`."""

    key: ClassVar[str] = "path"
    beside_others: ClassVar[bool] = False
    needs_handle: ClassVar[bool] = True
    prefix: str = ""

    def stands_at(self, found: Found, glued: str) -> bool:
        return found.location is Location.PATH and found.is_all_but(self.prefix + glued)

    def shown(self, head: RequestHead, value: str) -> RequestHead:
        return head

    @property
    def spot(self) -> tuple[str, str]:
        return "path", self.prefix

    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        if handle is None:
            return Deny(Reason.HANDLE_MISSING, "only a handle shows which path segment is meant")
        path, mark, query = request.head.target.partition("?")
        segments = path.split("/")
        wanted = self.prefix + handle
        found = [at for at, segment in enumerate(segments) if unquote(segment) == wanted]
        if len(found) != 1:
            return Deny(
                Reason.HANDLE_MISPLACED if handle in unquote(path) else Reason.HANDLE_MISSING,
                f"{len(found)} path segments are {self.prefix!r} and the handle; there must be one",
            )
        segment = quote(self.prefix + secret, safe=_PCHAR)
        if segment in (".", ".."):
            return Deny(Reason.SECRET_UNUSABLE, "the secret would be a dot segment")
        segments[found[0]] = segment
        return Edits(target="/".join(segments) + mark + query)

    @property
    def place(self) -> str:
        return f"a path segment after {self.prefix!r}" if self.prefix else "a path segment"


class PathSpec(Strict):
    prefix: PathPrefix = Field("", description="Text before the handle in its path segment.")


def _build(values: Mapping[str, Any]) -> PathInjection:
    spec: PathSpec = values["path"]
    return PathInjection(spec.prefix)


WAY = Way(
    keys={"path": (PathSpec, "One whole segment of the path, after an optional prefix.")},
    build=_build,
    parts={"path": PathSpec},
    examples={"path": "path: {prefix: bot}"},
)
