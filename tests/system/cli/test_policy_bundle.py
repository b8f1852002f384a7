"""`coatcheck policy key|bundle|sign|verify|list` as a person sees them."""

import asyncio
import json
from pathlib import Path

from tests.cli.transcript import coatcheck
from tests.system.cli.conftest import Served
from tests.system.cli.signed_policies import bundle, place

__all__ = ["place"]


def test_from_a_directory_to_a_bundle_that_is_trusted(place: Path) -> None:
    """Four commands; each says what it made."""
    said = coatcheck(*bundle(place, "--created", "2026-11-21T20:00:00Z"), cwd=place)
    assert said.code == 0 and not said.err
    assert said.out.startswith(
        "release.bundle: version 12 of platform-security, 2026-11-21T20:00:00Z, 1 policy, digest "
    )
    first = (place / "release.bundle").read_bytes()
    refused = coatcheck("policy", "verify", "release.bundle", "--trust-root", "key.pem.pub", cwd=place)
    assert refused.code == 1 and "release.bundle: error: the bundle is not signed" in refused.error
    assert coatcheck("policy", "sign", "release.bundle", "--key", "key.pem", cwd=place).code == 0
    said = coatcheck("policy", "verify", "release.bundle", "--trust-root", "key.pem.pub", cwd=place)
    assert said.code == 0 and "signed by the trusted key " in said.out and "  default: " in said.out
    env = {"COATCHECK_POLICY": "release.bundle", "COATCHECK_POLICY_TRUST_ROOT": "key.pem.pub"}
    answer = json.loads(coatcheck("policy", "verify", "--json", cwd=place, env=env).out)
    assert (answer["version"], answer["signatures"]) == (12, [answer["key"]])
    assert coatcheck(*bundle(place, "--created", "2026-11-21T21:00:00+0100"), cwd=place).code == 0
    assert (place / "release.bundle").read_bytes() == first


async def test_list_says_what_a_daemon_has_in_force_and_what_it_refuses(daemon: Served) -> None:
    """Exit code 1 while the newest files are not in force."""
    said = await daemon.coatcheck("policy", "list")
    assert said.code == 0 and said.out.startswith("default: ") and len(said.out.splitlines()) == 1
    file = Path(daemon.settings["COATCHECK_POLICY"]) / "default.yaml"
    file.write_bytes(b"version: 1\nowner: me\nrulez: []\n")
    async with asyncio.timeout(60):
        while (said := await daemon.coatcheck("policy", "list")).code == 0:
            pass
    assert said.code == 1 and "REFUSED, older ones are in force" in said.out and "rulez" in said.out
    assert said.out.startswith("default: ")
    answer = json.loads((await daemon.coatcheck("policy", "list", "--json")).out)
    assert "rulez" in answer["refused"] and answer["bundle"] is None
