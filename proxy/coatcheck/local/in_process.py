"""A daemon inside this process, for `coatcheck dev` and for `coatcheck run` where no other one answers."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from coatcheck import daemon
from coatcheck.decision.policy import Policy, SecretRef
from coatcheck.doctor.control import LONGEST_SOCKET_PATH
from coatcheck.platform.errors import CoatcheckError
from coatcheck.secrets import Secret, SecretMissing, SecretStore
from coatcheck.secrets.memory import MemoryStore
from coatcheck.settings.daemon import Settings

READY_SECONDS = 30.0
"""Keys, CA, listeners: about a second; a slow, busy two-core machine needs some."""


class OwnDaemonError(CoatcheckError):
    """The daemon did not come up, or cannot be asked for what was wanted. `hint` says what to do."""


@contextmanager
def private_directory(given: Path | None) -> Iterator[Path]:
    """`given`, or a directory of our own (0700) that is removed at the end of the block."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="coatcheck-", ignore_cleanup_errors=True) as made:
        yield Path(made)


@asynccontextmanager
async def own_daemon(
    settings: Settings, stores: Mapping[str, SecretStore] | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """A daemon that answers at `settings.control` for as long as the block lasts. It ends itself on
    SIGINT and SIGTERM (its task is then done), unless the block takes these signals for itself.

    Raises OwnDaemonError, and what `daemon.run` raises.
    """
    if len(str(settings.control)) > LONGEST_SOCKET_PATH:
        raise OwnDaemonError(
            f"{settings.control} is longer than a socket's path may be ({LONGEST_SOCKET_PATH} bytes)",
            "give a state directory with a shorter path",
        )
    serving = asyncio.create_task(daemon.run(settings, stores), name="daemon")
    try:
        await _until_it_answers(settings.control, serving)
        yield serving
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _until_it_answers(control: Path, serving: asyncio.Task[None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(READY_SECONDS):
            while not serving.done():
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_unix_connection(control)
                    writer.close()
                    return
                await asyncio.sleep(0.02)
    if serving.done():
        serving.result()
    raise OwnDaemonError(
        f"the daemon did not answer within {READY_SECONDS:g} s", "look at its messages above"
    )


def with_given(
    stores: Mapping[str, SecretStore], policies: Mapping[str, Policy], given: Mapping[str, str]
) -> dict[str, SecretStore]:
    """`stores`, in front of which stand the secrets in `given` (credential -> value), in memory only.

    Raises OwnDaemonError when no policy has a credential of that name.
    """
    values: dict[str, str] = {}
    refs: list[SecretRef] = []
    for name, value in given.items():
        found = [
            policy.credentials[name].secret for policy in policies.values() if name in policy.credentials
        ]
        if not found:
            known = sorted({each for policy in policies.values() for each in policy.credentials})
            raise OwnDaemonError(f"the policy has no credential {name!r}", f"it has: {', '.join(known)}")
        refs += found
        values |= {str(ref): value for ref in found}
    memory = MemoryStore(values)
    return {**stores, **{ref.store: _First(memory, stores.get(ref.store)) for ref in refs}}


class _First:
    """What was given, and behind it the store that the settings name."""

    def __init__(self, given: MemoryStore, behind: SecretStore | None) -> None:
        self._given = given
        self._behind = behind

    async def fetch(self, ref: SecretRef) -> Secret:
        try:
            return await self._given.fetch(ref)
        except SecretMissing:
            if self._behind is None:
                raise
        return await self._behind.fetch(ref)

    async def history(self, ref: SecretRef, known: Collection[str]) -> tuple[Secret, ...]:
        given = await self._given.history(ref, known)
        return given if given or self._behind is None else await self._behind.history(ref, known)

    async def close(self) -> None:
        if self._behind is not None:
            await self._behind.close()
