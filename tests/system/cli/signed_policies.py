"""A directory of policies, and the command that makes a signed bundle of it."""

from pathlib import Path

import pytest

from coatcheck.policy.shipped import POLICY
from tests.cli.transcript import coatcheck
from tests.policy.bundle.bundles import put


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
