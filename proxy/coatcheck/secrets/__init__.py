"""Where secrets come from: the protocol that every store keeps, and what a secret may not do.

May import: settings, platform, decision.

Stores: `vault` (Vault/OpenBao), `file`, `memory`. `router` picks one by a reference's scheme, `cache` keeps
what was read, `embedded` runs an OpenBao for development. This file imports none of them.
"""

from collections.abc import Collection
from typing import ClassVar, NoReturn, Protocol, Self

from coatcheck.decision.policy import SecretRef
from coatcheck.platform.errors import CoatcheckError


class Secret:
    """A real credential in memory. It cannot be printed, formatted, pickled or serialised by accident.

    `reveal()` is the only way to its value; grep for it to see every place that holds one.
    """

    __slots__ = ("_value", "ref", "version")

    def __init__(self, ref: SecretRef, value: str, version: str = "") -> None:
        self.ref = ref
        self.version = version
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({self.ref})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is never serialised")


class SecretUnavailable(CoatcheckError):
    """The store could not say: unreachable, sealed, stalled, or refusing us. Retrying may help.

    The message is for operators and holds no secret and no response body. `hint`: what to do, or "".
    """

    kind: ClassVar[str] = "unavailable"
    """For metrics: one of `telemetry.metrics.FetchFailure`."""

    def again(self) -> Self:
        """The same for somebody else who waited: an exception that is raised twice grows with each."""
        return type(self)(str(self), self.hint)


class SecretMissing(SecretUnavailable):
    """The store answered that there is no such secret or field. Retrying will not help."""

    kind = "missing"


class SecretDenied(SecretUnavailable):
    """The store knows the daemon and does not let it read this secret. Retrying will not help until an
    operator allows it."""

    kind = "denied"


class SecretStore(Protocol):
    """A source of secrets. It never blocks the loop and never raises anything but the three above."""

    async def fetch(self, ref: SecretRef) -> Secret: ...

    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        """Every value of the secret that the store has, the newest first, down to the first version that is
        in `known`; empty when there is none. Raises SecretUnavailable only."""
        ...

    async def close(self) -> None: ...
