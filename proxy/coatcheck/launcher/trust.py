"""What a guest must trust, put where its clients look for it."""

from pathlib import PurePosixPath
from typing import Final

from coatcheck.decision.sandbox import trust_inside
from coatcheck.launcher.channel import Channel, StreamReset
from coatcheck.launcher.spec import Identity

SYSTEM_BUNDLE: Final = PurePosixPath("/etc/ssl/certs/ca-certificates.crt")
"""Where programs look that heed no variable (Debian, Ubuntu, Alpine, Arch)."""
WRITER: Final = "root"
"""The agent itself. No caller can name it as an identity."""


async def provide(channel: Channel, identities: tuple[Identity, ...]) -> None:
    """Write every identity's trust files into the guest. StreamReset when the guest cannot take them."""
    bundles: list[bytes] = []
    for identity in identities:
        ca, bundle = identity.ca.read_bytes(), identity.bundle.read_bytes()
        contents = (ca, bundle, identity.java_truststore.read_bytes())
        for path, content in zip(trust_inside(identity.name), contents, strict=True):
            await _write(channel, path, content)
        # Sessions may have a CA each; what the whole system trusts is all of them, each once.
        bundles.append(bundle if not bundles else ca)
    try:
        await _write(channel, SYSTEM_BUNDLE, b"".join(dict.fromkeys(bundles)))
    except StreamReset:
        pass  # a read-only root (namespace backend): the variables say it to those that read them


async def _write(channel: Channel, path: PurePosixPath, content: bytes) -> None:
    stream = await channel.open("write", [("path", str(path)), ("mode", "0644"), ("identity", WRITER)])
    async with stream:
        await stream.write(content)
        await stream.end()
        while await stream.read() is not None:
            pass
