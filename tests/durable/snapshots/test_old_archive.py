"""Archives of the format before age are read as they always were: whole, or not at all."""

from pathlib import Path

import pytest

from coatcheck.durable.snapshots import old_archive
from coatcheck.durable.snapshots.directory import FILES, Snapshot
from coatcheck.durable.snapshots.manifest import SnapshotError
from tests.durable.snapshots.test_archive import PASSPHRASE, THEIRS, flip, place, taken

__all__ = ["place"]

OLD = Path(__file__).parent / "archive-1.ccs"
"""Exported in the format before age. Its files are 4096 bytes, with "all that it knew" in their middle."""


def test_an_archive_of_the_format_before_is_read(place: Path) -> None:
    """One release still takes what the last one exported; cut or altered, nothing is left of it."""
    content = OLD.read_bytes()
    assert content.startswith(old_archive.MAGIC)
    manifest = taken(content, place)
    assert manifest.origin.sandbox == "sbx_theirs"
    there = Snapshot(place / "two", THEIRS)
    for name in FILES:
        ((at, held),) = there.checked(name)
        assert (at, held) == (0, bytes(2048) + b"all that it knew" + bytes(2032))


@pytest.mark.parametrize("where", ["a byte", "cut", "cut within its header", "more at its end", "passphrase"])
def test_an_archive_of_the_format_before_is_whole_or_refused(place: Path, where: str) -> None:
    """As it always was."""
    content = OLD.read_bytes()
    spoilt = {
        "a byte": flip(content, 4000),
        "cut": content[:-1],
        "cut within its header": content[: len(old_archive.MAGIC) + 9],
        "more at its end": content + b"x",
        "passphrase": content,
    }
    words = b"incorrect horse battery staple" if where == "passphrase" else PASSPHRASE
    with pytest.raises(SnapshotError, match="the archive cannot be taken"):
        taken(spoilt[where], place, words)
    assert list(place.iterdir()) == []
