"""`coatcheck policy key|bundle|sign|verify|list` as a person sees them."""

import asyncio
import json
from pathlib import Path

import pytest

from coatcheck.policy.shipped import POLICY
from tests.cli.transcript import coatcheck
from tests.policy.bundle.bundles import put
from tests.system.cli.conftest import Served


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with `policies/default.yaml` and a key."""
    (tmp_path / "policies").mkdir(mode=0o755)
    put(tmp_path / "policies/default.yaml", POLICY.read_bytes())
    assert coatcheck("policy", "key", "key.pem", cwd=tmp_path).code == 0
    return tmp_path


def bundle(place: Path, *options: str) -> list[str]:
    """Arguments that make release.bundle."""
    wanted = ("--version", "12", "--owner", "platform-security", "-o", "release.bundle")
    return ["policy", "bundle", "policies", *wanted, *options]


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


def test_what_cannot_be_done_says_what_to_do(place: Path) -> None:
    """A bad policy, a key that others may read, a second key over the first, no trust root."""
    put(place / "policies/bad.yaml", b"version: 1\nowner: me\nrulez: []\n")
    said = coatcheck(*bundle(place), cwd=place)
    assert said.code == 1 and "bad.yaml:3:1: error: " in said.error
    assert not (place / "release.bundle").exists()
    (place / "policies/bad.yaml").unlink()
    assert coatcheck(*bundle(place), cwd=place).code == 0
    (place / "key.pem").chmod(0o644)
    said = coatcheck("policy", "sign", "release.bundle", "--key", "key.pem", cwd=place)
    assert said.code == 3 and "open to other users" in said.error
    said = coatcheck("policy", "key", "key.pem", cwd=place)
    assert said.code == 3 and "there is a key already in key.pem\nhint: sign with it" in said.error
    said = coatcheck("policy", "verify", "release.bundle", cwd=place)
    assert said.code == 2 and "no trust root is set, so no signature can be trusted" in said.error
    said = coatcheck("policy", "sign", "policies/default.yaml", "--key", "key.pem", cwd=place)
    assert said.code == 3 and "open to other users" in said.error
    (place / "key.pem").chmod(0o600)
    said = coatcheck("policy", "sign", "policies/default.yaml", "--key", "key.pem", cwd=place)
    assert said.code == 1 and "this is not a policy bundle" in said.error


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
