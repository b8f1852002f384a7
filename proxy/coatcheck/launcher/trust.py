"""In the supervisor: puts what a guest must trust where its clients look for it."""

import asyncio
import hashlib
import logging
import tempfile
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from coatcheck.certificates.authority import CertificateError
from coatcheck.certificates.client_files import client_files
from coatcheck.certificates.trust import write_nss_database
from coatcheck.launcher.channel import Channel, StreamReset
from coatcheck.launcher.spec import Identity
from coatcheck.launcher.tasks import together
from coatcheck.sandbox.sandbox import trust_inside

SYSTEM_BUNDLE: Final = PurePosixPath("/etc/ssl/certs/ca-certificates.crt")
"""Where programs look that heed no variable (Debian, Ubuntu, Alpine, Arch)."""
WRITER: Final = "root"
"""The agent itself. No caller can name it as an identity."""

type BrowserTrust = Mapping[str, Mapping[str, bytes]]
"""By identity: the files of Chromium's database of its user's roots, in its home."""

logger = logging.getLogger(__name__)


async def for_browsers(identities: tuple[Identity, ...], volumes: Collection[PurePosixPath]) -> BrowserTrust:
    """What makes Chromium trust each identity's CA; empty where this host has no certutil.

    `volumes`: where they are mounted. A home that lasts is its owner's, and so is such a database in it.
    """
    wanted = {
        each.name: each.ca
        for each in identities
        if not {_nss(each.name), *_nss(each.name).parents} & set(volumes)
    }
    made = await asyncio.to_thread(lambda: {ca: _database(ca) for ca in set(wanted.values())})
    return {name: made[ca] for name, ca in wanted.items()}


def _nss(identity: str) -> PurePosixPath:
    return PurePosixPath("/home", identity, ".pki/nssdb")


def _database(ca: Path) -> Mapping[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="coatcheck-nss-") as directory:
        try:
            write_nss_database(Path(directory), ca.read_bytes())
        except (CertificateError, OSError, ValueError) as error:  # no reason to have no sandbox
            logger.info("browsers in the sandbox will not trust its proxy: %s", error)
            return {}
        return {each.name: each.read_bytes() for each in Path(directory).iterdir()}


def digest(identities: tuple[Identity, ...]) -> str:
    """Of all that they are given to trust: a copy that has it already is not given it again."""
    hashed = hashlib.sha256()
    for each in identities:
        beside = client_files(trust_inside(each.name)[1]).values()
        for part in (each.name.encode(), *(file.read_bytes() for file in _files(each)), *beside):
            hashed.update(len(part).to_bytes(8) + part)
    return hashed.hexdigest()


def _files(identity: Identity) -> tuple[Path, Path, Path]:
    return identity.ca, identity.bundle, identity.java_truststore


async def provide(channel: Channel, identities: tuple[Identity, ...], browsers: BrowserTrust) -> None:
    """Write every identity's trust files into the guest. StreamReset when the guest cannot take them."""
    bundles: list[bytes] = []
    writing: list[Coroutine[None, None, None]] = []
    for identity in identities:
        contents = ca, bundle, _ = [file.read_bytes() for file in _files(identity)]
        places = trust_inside(identity.name)
        for path, content in zip(places, contents, strict=True):
            writing.append(_write(channel, path, content))
        for place, content in client_files(places[1]).items():
            writing.append(_write(channel, PurePosixPath(place), content))
        for name, content in browsers.get(identity.name, {}).items():
            # As its owner, who makes the directory: Chromium opens it to write, too. An image may have other
            # things there.
            path = _nss(identity.name) / name
            writing.append(_write_if_possible(channel, path, content, identity.name))
        # Sessions may have a CA each; what the whole system trusts is all of them, each once.
        bundles.append(bundle if not bundles else ca)
    # A read-only root (namespace backend) has no such place: the variables say it to those that read them.
    writing.append(_write_if_possible(channel, SYSTEM_BUNDLE, b"".join(dict.fromkeys(bundles))))
    await together(*writing)  # a guest that was just loaded answers each of them slowly


async def _write_if_possible(
    channel: Channel, path: PurePosixPath, content: bytes, identity: str = WRITER
) -> None:
    with suppress(StreamReset):
        await _write(channel, path, content, identity)


async def _write(channel: Channel, path: PurePosixPath, content: bytes, identity: str = WRITER) -> None:
    fields = [("path", str(path)), ("mode", "0644"), ("identity", identity), ("parents", "yes")]
    async with await channel.open("write", fields) as stream:
        await stream.write(content)
        await stream.end()
        while await stream.read() is not None:
            pass
