"""`inject: {header: Authorization, value: "Bearer {secret}"}`: one header, as most APIs have it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import Found, Injector, Location, Outgoing, only_value
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.spelling import SECRET, HeaderName, Template, Way


@dataclass(frozen=True, slots=True)
class HeaderInjection(Injector):
    """`name: template` where `{secret}` stands for the value, e.g. `Bearer {secret}`.

    The handle must stand where `{secret}` stands.
    """

    key: ClassVar[str] = "header"
    name: str
    template: str = SECRET

    def stands_at(self, found: Found, glued: str) -> bool:
        left, _, right = self.template.partition(SECRET)
        return (
            found.location is Location.HEADER
            and found.name == self.name.lower()
            # RFC 9110, 11.1: the scheme in `Bearer {secret}` is case-insensitive. The shape is not.
            and found.before.endswith(glued)
            and found.before[: len(found.before) - len(glued)].lower() == left.lower()
            and found.after == right
        )

    def shown(self, head: RequestHead, value: str) -> RequestHead:
        shown = (self.name.lower(), self.template.replace(SECRET, value))
        return replace(head, headers=(*head.headers, shown))

    @property
    def spot(self) -> tuple[str, str]:
        return "header", self.name.lower()

    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        name = self.name.lower()
        before, mark, after = self.template.partition(SECRET)
        if not mark or SECRET in after:
            return Deny(Reason.PLANE_CANNOT, "the template needs one {secret}")
        value = only_value(request.head, name)
        if isinstance(value, Deny):
            return value
        if handle is not None and value != f"{before}{handle}{after}":
            if value is None:
                return Deny(Reason.HANDLE_MISSING, f"no header {name}")
            # Schemes compare without case (RFC 9110, 11.1); everything else to the letter.
            scheme = len(before)
            if value[:scheme].lower() != before.lower() or value[scheme:] != handle + after:
                return Deny(Reason.HANDLE_MISPLACED, f"header {name} is not exactly {self.template!r}")
        return Edits(((name, f"{before}{secret}{after}"),))

    @property
    def place(self) -> str:
        return f"the header {self.name}"

    def terms(self) -> Mapping[str, str]:
        return {self.place: self.template}


def _build(values: Mapping[str, Any]) -> HeaderInjection:
    return HeaderInjection(values["header"], values["value"] or SECRET)


WAY = Way(
    keys={
        "header": (HeaderName, "Name of the header that carries the handle."),
        "value": (Template, "Template of the header's value. Default: {secret}."),
    },
    build=_build,
    snippets=(
        {
            "label": "bearer token in a header",
            "description": "As most APIs have it.",
            "body": {"header": "${1:Authorization}", "value": "${2:Bearer {secret\\}}"},
        },
    ),
)
