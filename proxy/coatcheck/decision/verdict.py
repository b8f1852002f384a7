"""What is decided about a request: Deny, Pass or Inject. The absence of a verdict is Deny."""

from dataclasses import dataclass, field

from coatcheck.decision.denial import Deny
from coatcheck.decision.policy import Credential, Rule
from coatcheck.decision.session import Session


@dataclass(frozen=True, slots=True)
class Injection:
    """One credential to put into one request, where the handle stood (None: no handle needed)."""

    credential: Credential
    handle: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pass:
    """Allowed as it is."""

    session: Session
    rule: Rule

    @property
    def credentials(self) -> tuple[str, ...]:
        """Names of what is injected: none."""
        return ()


@dataclass(frozen=True, slots=True)
class Inject:
    """Allowed, with credentials put in."""

    session: Session
    rule: Rule
    injections: tuple[Injection, ...]

    @property
    def credentials(self) -> tuple[str, ...]:
        """Names of what is injected, in the order of the injections."""
        return tuple(each.credential.name for each in self.injections)


type Verdict = Deny | Pass | Inject
