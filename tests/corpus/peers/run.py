"""The corpus against other proxies, and against ours looked at as they are."""

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.corpus import proxies, runner
from tests.corpus.peers.mitmdump import mitmdump
from tests.corpus.peers.peer import has_part
from tests.corpus.peers.squid import squid
from tests.corpus.schema import Run
from tests.corpus.world import world


@asynccontextmanager
async def coatcheck(directory: Path, upstream_ca: Path) -> AsyncIterator[proxies.UnderTest]:
    async with proxies.running(directory / "daemon", upstream_ca, {}) as ours:
        yield ours


PEERS: Final = {"coatcheck": coatcheck, "mitmdump": mitmdump, "squid": squid}


async def run(todo: Iterable[Run], names: Iterable[str]) -> dict[str, list[runner.Result]]:
    """What came of it, by proxy: of the cases that ask for nothing but an address."""
    asked = [each for each in todo if has_part(each)]
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="corpus-") as made:
            directory = Path(made)
            async with world(directory) as around, PEERS[name](directory, around.ca) as proxy:
                found[name] = await runner.peer_of(asked, proxy, around)
    return found
