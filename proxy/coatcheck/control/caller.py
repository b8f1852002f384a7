"""Who may use the control API for what: an authenticated identity with grants (default deny)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coatcheck.decision.message import OriginClass
from coatcheck.decision.session import Isolation, Session

EVERY: Final = "*"
"""In a grant's tenants or policies: all of them."""


class Role(StrEnum):
    """What a caller is for."""

    OWNER = "owner"
    """The daemon's own uid and `control_uids`: everything. It cannot be written into the grants file."""
    LAUNCHER = "launcher"
    """Opens sessions, keeps them alive and ends them; sees its own only."""
    OPERATOR = "operator"
    """Sees and revokes any session of its tenants, answers for held requests, and reloads."""
    AUDITOR = "auditor"
    """Reads."""


class Action(StrEnum):
    """What may be asked for."""

    OPEN = "open"
    """Also renewing, and minting handles: whatever gives."""
    END = "end"
    """Revoking a session or a handle, or ending a session: whatever takes."""
    SEE = "see"
    APPROVE = "approve"
    """Answering for a request that a rule holds until somebody says yes. Never a launcher: what starts an
    agent, or is one, must not let it go on."""
    INSPECT = "inspect"
    """Searching a sandbox for secrets: it stands still meanwhile, and the answer is yes or no."""
    RELOAD = "reload"
    MEASURE = "measure"
    """Metrics, which count all tenants' requests together."""


_ALLOWED: Final = {
    Role.OWNER: frozenset(Action),
    Role.LAUNCHER: frozenset({Action.OPEN, Action.END, Action.SEE, Action.INSPECT}),
    Role.OPERATOR: frozenset(
        {Action.END, Action.SEE, Action.APPROVE, Action.INSPECT, Action.RELOAD, Action.MEASURE}
    ),
    Role.AUDITOR: frozenset({Action.SEE, Action.MEASURE}),
}


@dataclass(frozen=True, slots=True)
class Caller:
    """An identity and its grants. Its name stands in the audit log as who did it."""

    name: str
    role: Role
    tenants: frozenset[str] = frozenset()
    policies: frozenset[str] = frozenset()
    isolation: frozenset[Isolation] = frozenset()
    origins: frozenset[OriginClass] = frozenset()

    def may(self, action: Action) -> bool:
        if action is Action.MEASURE and EVERY not in self.tenants:
            return False
        return action in _ALLOWED[self.role]

    def of_tenant(self, tenant: str) -> bool:
        return tenant in self.tenants or EVERY in self.tenants

    def of_policy(self, policy: str) -> bool:
        """Only launchers are held to policies: the others answer for all that their tenants do."""
        return self.role is not Role.LAUNCHER or policy in self.policies or EVERY in self.policies

    def sees(self, session: Session) -> bool:
        """Whether this session exists for the caller at all."""
        if self.role is Role.LAUNCHER:
            return session.opened_by == self.name
        return self.of_tenant(session.tenant)

    def may_give(self, tenant: str, policy: str, isolation: Isolation, origin: OriginClass) -> str | None:
        """None when the grant covers a session like this one, else what it does not cover.

        Asked again at each renewal: a grant that was taken away ends the sessions that it opened.
        """
        if not self.may(Action.OPEN):
            return f"the role {self.role}"
        if not self.of_tenant(tenant):
            return "this tenant"
        if not self.of_policy(policy):
            return "this policy"
        if isolation not in self.isolation:
            return f"isolation {isolation}"
        if origin not in self.origins:
            return f"origin class {origin}"
        return None


def owner(name: str) -> Caller:
    """A caller with every grant."""
    return Caller(
        name, Role.OWNER, frozenset({EVERY}), frozenset({EVERY}), frozenset(Isolation), frozenset(OriginClass)
    )
