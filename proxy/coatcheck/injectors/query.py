"""`inject: {query: key}`: the value of one query parameter."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from coatcheck.decision.denial import Deny
from coatcheck.decision.injection import Found, Injector, Location, Outgoing
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.pairs import substitute_pair
from coatcheck.injectors.spelling import Parameter, Way


@dataclass(frozen=True, slots=True)
class QueryInjection(Injector):
    """Query parameter `name` carries the handle."""

    key: ClassVar[str] = "query"
    name: str

    def stands_at(self, found: Found, glued: str) -> bool:
        return found.location is Location.QUERY and found.name == self.name and found.is_all_but(glued)

    def shown(self, head: RequestHead, value: str) -> RequestHead:
        joint = "&" if "?" in head.target else "?"
        return replace(head, target=f"{head.target}{joint}{self.name}={value}")

    @property
    def spot(self) -> tuple[str, str]:
        return "query", self.name

    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        path, _, query = request.head.target.partition("?")
        pairs = substitute_pair(query, self.name, handle, secret)
        return pairs if isinstance(pairs, Deny) else Edits(target=f"{path}?{pairs}")

    @property
    def place(self) -> str:
        return f"the query parameter {self.name}"


def _build(values: Mapping[str, Any]) -> QueryInjection:
    return QueryInjection(values["query"])


WAY = Way(
    keys={"query": (Parameter, "Name of the query parameter that carries the handle.")},
    build=_build,
    snippets=({"label": "query parameter", "description": "?key=…", "body": {"query": "${1:key}"}},),
)
