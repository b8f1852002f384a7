"""A reader of signed bundles: nothing else, and nothing older."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.platform.private_files import PrivateFileError
from coatcheck.policy.bundle import signed as module
from coatcheck.policy.bundle.signed import FILE_NAME, HighestVersion, SignedPolicies, signed_policies
from coatcheck.policy.file.problem import PolicyError
from tests.policy.bundle.bundles import YAML, pem, put, signed

KEY, NEXT = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
OTHER_YAML = YAML + b"# more\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return put(tmp_path / "keys.pem", pem(KEY))


def reader(root: Path) -> SignedPolicies:
    """As a daemon that has just been started makes it."""
    made = signed_policies(root, root.parent / "state")
    assert made is not None
    return made


def test_without_a_trust_root_there_is_no_such_reader(tmp_path: Path) -> None:
    """Then policies are files, as always."""
    assert signed_policies(None, tmp_path) is None


def test_nothing_below_the_highest_version_counts_also_after_a_restart(root: Path, tmp_path: Path) -> None:
    """The same bundle again does, with more signatures, too; other content under its version does not."""
    file = tmp_path / "release.bundle"
    one = reader(root)
    one.read(put(file, signed(KEY, 7)))
    for again in (one, reader(root)):
        assert again.read(put(file, signed(KEY, 7))).keys() == {"default"}
        for version, yaml, why in ((6, YAML, "7 was in force already"), (7, OTHER_YAML, "another bundle")):
            with pytest.raises(PolicyError, match=f"release.bundle.*{why}"):
                again.read(put(file, signed(KEY, version, yaml)))
        assert again.accepted is not None and again.accepted.bundle.version == 7
    assert reader(root).read(put(file, signed(KEY, 8, OTHER_YAML)))
    put(file, signed(KEY, 7))
    with pytest.raises(PolicyError, match="8 was in force"):
        reader(root).read(file)


def test_a_key_is_replaced_without_a_gap_and_the_old_one_counts_no_more(root: Path, tmp_path: Path) -> None:
    """Both in the trust root, then only the new one; a lower version cannot hide behind the new key."""
    file, read = tmp_path / "release.bundle", reader(root)
    read.read(put(file, signed(KEY, 1)))
    put(root, pem(KEY, NEXT))
    read.read(put(file, signed(NEXT, 2)))
    read.read(put(file, signed(KEY, 3)))
    put(root, pem(NEXT))
    with pytest.raises(PolicyError, match="and trusted are"):
        read.read(put(file, signed(KEY, 4)))
    with pytest.raises(PolicyError, match="3 was in force"):
        read.read(put(file, signed(NEXT, 2)))
    read.read(put(file, signed(NEXT, 4)))


def test_what_is_refused_raises_nothing(root: Path, tmp_path: Path) -> None:
    """A bundle with a policy that cannot be loaded does not burn its version, nor does a stranger's."""
    file, read = tmp_path / "release.bundle", reader(root)
    bad = signed(KEY, 9).replace(b'"version":9', b'"version":99')
    for data in (bad, signed(NEXT, 9), YAML, b""):
        with pytest.raises(PolicyError):
            read.read(put(file, data))
    assert not (tmp_path / "state" / FILE_NAME).exists() and read.accepted is None
    read.read(put(file, signed(KEY, 1)))


def test_a_directory_and_a_policy_file_are_no_bundle(root: Path, tmp_path: Path) -> None:
    """Where a trust root is set, an unsigned file beside the bundle says nothing."""
    (tmp_path / "policies").mkdir()
    put(tmp_path / "policies/default.yaml", YAML)
    with pytest.raises(PolicyError, match="is a directory"):
        reader(root).read(tmp_path / "policies")
    with pytest.raises(PolicyError, match="not a policy bundle"):
        reader(root).read(tmp_path / "policies/default.yaml")


def test_a_trust_root_that_cannot_be_read_trusts_nobody(root: Path, tmp_path: Path) -> None:
    """It is read anew for each bundle."""
    file, read = put(tmp_path / "release.bundle", signed(KEY, 1)), reader(root)
    read.read(file)
    root.unlink()
    with pytest.raises(PolicyError, match=r"keys\.pem"):
        read.read(file)


def test_a_full_disk_keeps_no_policy_from_its_force_and_is_made_good(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tightened policy must not wait for the disk; the version is held in memory, and saved later."""
    file, read = put(tmp_path / "release.bundle", signed(KEY, 5)), reader(root)

    def full(path: Path, content: bytes, **how: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", full)
        assert read.read(file) and read.read(file)
        assert not read.remembered
        assert caplog.text.count("No space left") == 1
        with pytest.raises(PolicyError, match="5 was in force"):
            read.read(put(file, signed(KEY, 4)))
    read.read(put(file, signed(KEY, 5)))
    assert read.remembered
    assert HighestVersion.open(tmp_path / "state").version == 5


@pytest.mark.parametrize(
    "content", ["", "7", "{}", '{"version": "7", "digest": ""}', '{"version": 7}', "[[["]
)
def test_a_damaged_memory_is_told_and_not_taken_for_none(root: Path, tmp_path: Path, content: str) -> None:
    """Or emptying the file would let every old version in."""
    path = tmp_path / "state" / FILE_NAME
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(PrivateFileError, match="highest policy version"):
        reader(root)
    path.write_text(json.dumps({"version": 7, "digest": ""}))
    path.chmod(0o644)
    with pytest.raises(PrivateFileError, match="open to other users"):
        reader(root)
