"""What a policy answers for one piece of all requests: the core itself is asked, about a member of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coatcheck.decision.denial import Deny
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import (
    Policy,
    Rule,
    credential_allows,
    match,
    rules_for_host,
    tunnel_rule,
)
from coatcheck.policy.diff.cells import HostCell, PathCell, host_cells, path_cells


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests that no rule and no credential of the policies in question tells apart."""

    host: HostCell
    scheme: str
    port: int
    method: str
    websocket: bool
    path: PathCell

    @property
    def destination(self) -> Destination:
        return Destination(self.scheme, self.host.member, self.port)

    @property
    def head(self) -> RequestHead:
        headers = (("upgrade", "websocket"),) if self.websocket else ()
        return RequestHead(self.method, self.path.member, headers)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a policy lets a cell's requests leave, for a session that was granted all its credentials."""

    rule: Rule
    credentials: frozenset[str]
    """Those whose handle may stand in them."""
    unasked: str | None
    """The one that is injected without a handle (`handle: optional`)."""

    @property
    def ways(self) -> frozenset[tuple[str, str]]:
        """Each way of leaving as (kind, credential): `bare`, `handle` or `unasked`. There is none where
        every request is asked for a handle and no credential of the rule counts."""
        if not self.rule.credentials:
            return frozenset({("bare", "")})
        unasked = {("unasked", self.unasked)} if self.unasked else set()
        return frozenset({("handle", name) for name in self.credentials} | unasked)


def answer(policy: Policy, cell: Cell) -> Answer | None:
    """None: no rule allows the requests of the cell."""
    destination, head = cell.destination, cell.head
    found = match(policy, destination, head)
    if isinstance(found, Deny):
        return None
    fitting = [
        name
        for name in found.credentials
        if credential_allows(policy.credentials[name], destination, head) is None
    ]
    unasked = next((name for name in fitting if not policy.credentials[name].handle_required), None)
    return Answer(found, frozenset(fitting), unasked)


def hosts_of(policies: Sequence[Policy]) -> list[HostCell]:
    """The cells of every host that a rule or a credential of the policies names."""
    named = [host for policy in policies for rule in policy.rules for host in rule.hosts]
    named += [host for policy in policies for key in policy.credentials.values() for host in key.hosts]
    return host_cells(named)


def cells_at(host: HostCell, policies: Sequence[Policy]) -> Iterator[Cell]:
    """All cells of requests to `host` that a rule of one of the policies could allow. Raises TooComplex."""
    rules = [rule for policy in policies for rule in rules_for_host(policy, host.member) if not rule.tunnel]
    if not rules:
        return
    named = {
        credential
        for policy in policies
        for rule in rules_for_host(policy, host.member)
        for credential in (policy.credentials[name] for name in rule.credentials)
    }
    patterns = {path for rule in rules for path in rule.paths} | {path for key in named for path in key.paths}
    paths = path_cells(patterns)
    schemes = ["https", "http"] if any(rule.plain_http for rule in rules) else ["https"]
    for scheme in schemes:
        for port in sorted({port for rule in rules for port in rule.ports}):
            for method in sorted({method for rule in rules for method in rule.methods}):
                for websocket in sorted({False} | {rule.websocket for rule in rules}):
                    for path in paths:
                        yield Cell(host, scheme, port, method, websocket, path)


def tunnels_at(host: HostCell, policy: Policy) -> dict[int, Rule]:
    """The ports on which TLS to the host passes unopened, each with its rule."""
    ports = {port for rule in rules_for_host(policy, host.member) for port in rule.ports}
    found = {port: tunnel_rule(policy, host.member, port) for port in sorted(ports)}
    return {port: rule for port, rule in found.items() if rule is not None}
