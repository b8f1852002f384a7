"""An archive is read where it can do nothing, and what comes out of there is not believed either."""

from pathlib import Path
from typing import Any

import pytest

from coatcheck.images import confined
from coatcheck.images.problem import ImageError
from coatcheck.images.unpacking import unpack
from tests.images import filesystem
from tests.images.tars import entry, layout, tar
from tests.images.test_archive import HOSTILE

pytestmark = pytest.mark.needs_debian("bwrap", "mke2fs")
ROOT = (entry("bin"), ("bin/sh", b"shell"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "made"
    path.mkdir(mode=0o700)
    return path


def refused(archive: Path, directory: Path, words: str, **more: Any) -> None:
    with pytest.raises(ImageError, match=words) as raised:
        unpack(archive, directory, lambda _line: None, **more)
    assert raised.value.hint
    assert list(directory.iterdir()) == []


def test_it_gives_a_filesystem_and_how_to_start(tmp_path: Path, directory: Path) -> None:
    """And says meanwhile what it does."""
    told: list[str] = []
    archive = layout(tmp_path / "image.tar", [tar(*ROOT)], {"Cmd": ["sh"], "Env": ["A=b"]})
    config = unpack(archive, directory, told.append)
    assert (config.command, dict(config.environment)) == (("sh",), {"A": "b"})
    assert told == ["unpacking layer 1 of 1", "writing the filesystem"]
    assert [path.name for path in directory.iterdir()] == ["root.ext4"]
    filesystem.check(directory / "root.ext4")


@pytest.mark.parametrize(
    "case", ["a path that climbs", "a device", "a link that leads out", "a path through a file"]
)
def test_a_hostile_archive_is_refused_from_there(tmp_path: Path, directory: Path, case: str) -> None:
    """With the words and the hint that it has here, and nothing left."""
    refused(layout(tmp_path / "image.tar", [tar(*ROOT, *HOSTILE[case])]), directory, "image.tar: ")


def test_a_bomb_meets_the_limits(tmp_path: Path, directory: Path) -> None:
    """Whatever our own count of bytes says: here it is not asked at all."""
    layer = tar(*ROOT, *((f"f{number}", bytes(1024**2)) for number in range(40)))
    small = confined.Limits(seconds=60, memory=1024**3, disk=8 * 1024**2)
    refused(
        layout(tmp_path / "image.tar", [layer]),
        directory,
        "has written more|failed|no space|too large",
        limits=small,
    )


PLANTED = {
    "a link": "ln -s /etc/hostname root.ext4",
    "a pipe": "mkfifo root.ext4",
    "a directory": "mkdir root.ext4",
    "a second name": "touch root.ext4; ln root.ext4 other",
    "nothing": "true",
}


@pytest.mark.parametrize("script", PLANTED.values(), ids=PLANTED)
def test_what_somebody_who_broke_out_of_the_reader_leaves_is_not_believed(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """A link would have us open, chmod or publish a file of this machine."""
    planted = '{"environment": {}, "command": [], "working_directory": "", "user": ""}'
    words = ["/bin/sh", "-c", f"echo '{planted}' >start.json; {script}"]
    monkeypatch.setattr(confined, "python", lambda *_words: (words, []))
    refused(layout(tmp_path / "image.tar", [tar(*ROOT)]), directory, "is not a plain file|made no root.ext4")


@pytest.mark.parametrize("said", ["[]", "{", '{"environment": 5}', "[" * 100_000])
def test_neither_is_what_it_says(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Words of another form are refused, without a traceback."""
    (tmp_path / "said").write_text(said)
    words = ["/bin/sh", "-c", f"cp {tmp_path}/said start.json; touch root.ext4"]
    monkeypatch.setattr(confined, "python", lambda *_words: (words, [(tmp_path / "said", tmp_path / "said")]))
    refused(layout(tmp_path / "image.tar", [tar(*ROOT)]), directory, "how its program is started")
