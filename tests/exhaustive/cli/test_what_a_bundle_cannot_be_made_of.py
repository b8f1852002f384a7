"""`coatcheck policy bundle`: mistakes, and what to do about them."""

from pathlib import Path

from tests.cli.transcript import coatcheck
from tests.policy.bundle.bundles import put
from tests.system.cli.signed_policies import bundle, place

__all__ = ["place"]


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
