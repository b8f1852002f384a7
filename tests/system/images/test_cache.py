"""The cache: whole or not at all, one build at a time."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from coatcheck.images.cache import FILES, Cache, find
from coatcheck.images.problem import ImageError
from coatcheck.platform.private_files import PrivateFileError


@pytest.fixture
def images(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def fill(directory: Path) -> None:
    for name in FILES:
        (directory / name).write_bytes(b"x")


def test_what_was_made_is_found_and_not_made_again(images: Cache) -> None:
    """A second build is instant."""
    made = images.make("complete", "0123456789abcdef", fill)
    images.name("default", made)
    assert images.make("complete", "0123456789abcdef", lambda _: pytest.fail("it was there")) == made
    assert images.find() == images.find("01234567") == find(images.where.parent) == made


@pytest.mark.parametrize("problem", [ImageError("no"), KeyboardInterrupt(), SystemExit(143), OSError(5, "x")])
def test_whatever_ends_a_build_leaves_nothing(images: Cache, problem: BaseException) -> None:
    """An error, Ctrl-C, SIGTERM: the next build starts with nothing."""

    def torn(directory: Path) -> None:
        (directory / "work").mkdir()
        (directory / "work/file").touch()
        raise problem

    with pytest.raises(type(problem)):
        images.make("roots", "abc", torn)
    assert list((images.where / "roots").iterdir()) == []


def test_what_a_killed_build_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    """kill -9 lets nobody clean up; what it leaves is never taken for an image."""
    script = """
import os, signal, sys
from pathlib import Path
from coatcheck.images.cache import Cache
def build(directory):
    (directory / "root.ext4").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
Cache(Path(sys.argv[1])).make("roots", "abc", build)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "cache")], check=False)
    assert killed.returncode == -signal.SIGKILL
    images = Cache(tmp_path / "cache")
    assert images.keys("roots") == set()
    made = images.make("roots", "other", fill)
    assert [path.name for path in made.parent.iterdir()] == ["other"]


def test_one_build_at_a_time(images: Cache) -> None:
    """The second is told that it waits, and goes on when the first has ended."""
    told, waits, done = list[str](), threading.Event(), threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        waits.set()

    def second() -> None:
        with Cache(images.where.parent).building(tell):
            done.set()

    with images.building(tell):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert waits.wait(30) and not done.is_set()
    waiting.join(30)
    assert done.is_set() and told == ["waiting for another build to end"]


def test_no_image_and_half_an_image_say_what_to_do(images: Cache) -> None:
    """The words name the command."""
    with pytest.raises(ImageError, match="there is no image `default`") as raised:
        images.find()
    assert raised.value.hint == "build it: coatcheck image build"
    made = images.make("complete", "0123456789abcdef", fill)
    images.name("mine", made)
    (made / "initrd").unlink()
    with pytest.raises(ImageError, match="lacks initrd") as raised:
        images.find("mine")
    assert "--name mine" in raised.value.hint and "--force" in raised.value.hint
    with pytest.raises(ImageError) as raised:
        images.find("another")
    assert "there are: mine" in raised.value.hint


@pytest.mark.parametrize("name", ["", "../x", "UP", ".hidden", "a/b", "x" * 64, "-x"])
def test_a_name_is_a_name(images: Cache, name: str) -> None:
    """It becomes a file's name."""
    with pytest.raises(ImageError, match="cannot be an image's name"):
        images.name(name, images.where)


def test_a_name_cannot_lead_out_of_the_cache(images: Cache) -> None:
    """Whatever a link in it says, only the last part of it counts."""
    (images.where / "names/evil").symlink_to("/etc")
    assert images.names()["evil"] == images.where / "complete/etc"


def test_a_cache_that_others_can_write_is_refused(images: Cache) -> None:
    """They would choose what runs in every sandbox."""
    images.where.chmod(0o777)
    with pytest.raises(PrivateFileError, match="open to other users"):
        Cache(images.where.parent)


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    """With what to do, and nothing half made stays; on a file system of two megabytes."""
    script = """
import sys
from pathlib import Path
from coatcheck.images.cache import Cache
from coatcheck.images.programs import NoSpace
images = Cache(Path(sys.argv[1]) / "cache")
try:
    images.make("roots", "abc", lambda directory: (directory / "x").write_bytes(bytes(5_000_000)))
except NoSpace as problem:
    print(problem, "|", problem.hint, "|", images.keys("roots"))
"""
    place = tmp_path / "small"
    place.mkdir()
    inside = f'mount -t tmpfs -o size=2m none {place} && exec "$@"'
    program = ("sh", "-c", inside, "sh", sys.executable, "-c", script, str(place))
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", *program],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("no space is left where images are built | free some")
    assert done.stdout.rstrip().endswith("set()")
