"""`coatcheck sandbox export|import`: from one host's state directory into another's, by a file."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coatcheck.cli.errors import CommandError
from coatcheck.cli.sandbox_archive import COMMANDS
from coatcheck.durable.snapshots import archive
from coatcheck.durable.snapshots.directory import FILES, MEMORY, Snapshot, Unfinished
from coatcheck.durable.snapshots.manifest import SnapshotError, open_key
from coatcheck.platform.private_files import PrivateFileError
from tests.durable.snapshots.test_manifest import HERE, MANIFEST

OURS, THEIRS = "sbx_0123456789abcdef", "sbx_fedcba9876543210"
CONTENT = b"all that it knew"


@pytest.fixture(scope="module", autouse=True)
def cheap() -> Iterator[None]:
    """Its cost is claimed in tests/durable/snapshots/test_archive.py."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archive, "COST", 16)
        yield


def run(command: str, *words: str | Path) -> str:
    """Standard output; what the command's frame would tell is raised."""
    app = typer.Typer()
    for name, function in COMMANDS.items():
        app.command(name)(function)
    done = CliRunner().invoke(app, [command, *map(str, words)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def host(place: Path, sandbox: str) -> Path:
    """A state directory with a sandbox that has no snapshot yet."""
    kept = place / "sandboxes" / sandbox.removeprefix("sbx_") / "snapshots"
    kept.mkdir(parents=True)
    for each in (place, *kept.parents[:2], kept):
        each.chmod(0o700)
    open_key(place / "snapshots.key")
    return place


def kept(state: Path, sandbox: str) -> Path:
    return state / "sandboxes" / sandbox.removeprefix("sbx_") / "snapshots"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    state = host(tmp_path / "ours", OURS)
    files = Unfinished(kept(state, OURS) / "one", 1)
    files.begin()
    source = os.memfd_create("memory")
    os.ftruncate(source, 2 << 20)
    os.pwrite(source, CONTENT, 1 << 20)
    for name in FILES:
        files.copy(name, source, 2 << 20)
    os.close(source)
    files.finish(MANIFEST.origin, 1, HERE, open_key(state / "snapshots.key"))
    return state


@pytest.fixture
def passphrase(tmp_path: Path) -> Path:
    path = tmp_path / "passphrase"
    path.write_text("correct horse battery staple\n")
    path.chmod(0o600)
    return path


def test_a_snapshot_goes_from_one_host_to_another(ours: Path, passphrase: Path, tmp_path: Path) -> None:
    """Its content is the same; it is signed there, and is that host's sandbox's."""
    theirs = host(tmp_path / "theirs", THEIRS)
    file = tmp_path / "one.ccs"
    run("export", OURS, "one", file, "--passphrase", passphrase, "--state-dir", ours)
    assert file.stat().st_mode & 0o777 == 0o600
    assert CONTENT not in file.read_bytes()
    said = run("import", THEIRS, "two", file, "--passphrase", passphrase, "--state-dir", theirs)
    assert said == (
        f"{THEIRS}: snapshot two, 192 MiB of memory, 1 CPUs, 64 MiB of disk, isolation emulated;"
        " saved by QEMU 7.2.22\n"
    )
    there = Snapshot.open(kept(theirs, THEIRS) / "two", theirs / "snapshots.key")
    assert there.manifest.origin.sandbox == THEIRS
    assert next(there.checked(MEMORY))[1].startswith(CONTENT)


def test_an_import_that_fails_leaves_nothing(ours: Path, passphrase: Path, tmp_path: Path) -> None:
    """Cut off on its way; a name that is taken."""
    file = tmp_path / "one.ccs"
    run("export", OURS, "one", file, "--passphrase", passphrase, "--state-dir", ours)
    with pytest.raises(SnapshotError, match="there is a snapshot one already"):
        run("import", OURS, "one", file, "--passphrase", passphrase, "--state-dir", ours)
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(SnapshotError, match="the archive cannot be taken"):
        run("import", OURS, "two", file, "--passphrase", passphrase, "--state-dir", ours)
    assert [path.name for path in kept(ours, OURS).iterdir()] == ["one"]


def test_what_is_imported_is_not_called_as_if_it_could_be_replaced(ours: Path, passphrase: Path) -> None:
    """A sandbox that rotates its periodic snapshots would take it for one of them."""
    with pytest.raises(CommandError, match="begin with auto- are of periodic snapshots"):
        run("import", OURS, "auto-1", "no.ccs", "--passphrase", passphrase, "--state-dir", ours)


def test_an_export_that_fails_leaves_no_file(ours: Path, passphrase: Path, tmp_path: Path) -> None:
    """Half of one would be found years later; and what is there is not written over."""
    file = tmp_path / "one.ccs"
    os.truncate(kept(ours, OURS) / "one" / MEMORY, 0)
    with pytest.raises(SnapshotError, match="is damaged"):
        run("export", OURS, "one", file, "--passphrase", passphrase, "--state-dir", ours)
    assert not file.exists()
    file.write_text("kept")
    with pytest.raises(CommandError, match="already exists"):
        run("export", OURS, "one", file, "--passphrase", passphrase, "--state-dir", ours)
    assert file.read_text() == "kept"


@pytest.mark.parametrize(
    "sandbox", ["", "..", "sbx_../../etc", "sbx_0123456789ABCDEF", "sbx_0123456789abcdef/x"]
)
def test_what_is_no_id_is_refused(ours: Path, passphrase: Path, tmp_path: Path, sandbox: str) -> None:
    """It becomes a path."""
    with pytest.raises(CommandError, match="is not a sandbox id"):
        run("export", sandbox, "one", tmp_path / "x", "--passphrase", passphrase, "--state-dir", ours)


def test_what_is_not_there_is_said(ours: Path, passphrase: Path, tmp_path: Path) -> None:
    """The sandbox, or the snapshot, with those that are."""
    with pytest.raises(CommandError, match=f"nothing is kept of a sandbox {THEIRS}"):
        run("export", THEIRS, "one", tmp_path / "x", "--passphrase", passphrase, "--state-dir", ours)
    with pytest.raises(SnapshotError, match="there is no snapshot two") as caught:
        run("export", OURS, "two", tmp_path / "x", "--passphrase", passphrase, "--state-dir", ours)
    assert caught.value.hint == "there are: one"


def test_a_passphrase_that_others_can_read_is_none(ours: Path, passphrase: Path, tmp_path: Path) -> None:
    """Nor is an empty one."""
    passphrase.chmod(0o644)
    with pytest.raises(PrivateFileError, match="is open to other users"):
        run("export", OURS, "one", tmp_path / "x", "--passphrase", passphrase, "--state-dir", ours)
    passphrase.chmod(0o600)
    passphrase.write_text("")
    with pytest.raises(CommandError, match="is empty"):
        run("export", OURS, "one", tmp_path / "x", "--passphrase", passphrase, "--state-dir", ours)
