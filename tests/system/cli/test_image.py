"""`coatcheck image …` as a person sees it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.transcript import COATCHECK, Said, coatcheck, environment
from tests.images.caches import own_cache

pytestmark = pytest.mark.needs_debian("mke2fs", "cc")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a cache and a small root in it."""
    own_cache(tmp_path / "cache")
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "root/bin/sh").write_bytes(b"shell")
    return tmp_path


def image(here: Path, *arguments: str) -> Said:
    return coatcheck("image", *arguments, cwd=here, env={"COATCHECK_CACHE_DIR": str(here / "cache")})


def test_an_image_is_built_shown_listed_and_removed(here: Path) -> None:
    """Its whole life; progress goes to standard error, so that --json is one document."""
    built = image(here, "build", "--name", "mine", "--from-dir", "root", "--json")
    assert built.code == 0, built.err
    told = json.loads(built.out)
    assert (told["name"], told["source"]) == ("mine", str(here / "root"))
    assert set(told["files"]) == {"vmlinuz", "initrd", "root.ext4", "manifest.json"}
    assert all(line.startswith("image: ") for line in built.err.splitlines())

    shown = image(here, "show", "mine")
    assert (
        shown.out.startswith(f"image       mine {told['id']}, 2")
        and f"path        {told['path']}" in shown.out
    )
    assert json.loads(image(here, "show", told["id"], "--json").out)["files"] == told["files"]
    _, line = image(here, "list").out.splitlines()
    assert line.split()[:2] == ["mine", told["id"]]

    assert image(here, "rm", "mine").code == 0
    assert json.loads(image(here, "list", "--json").out) == []
    gone = image(here, "show", "mine")
    assert gone.code == 3 and "there is no image `mine`" in gone.error and "--name mine" in gone.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from-dir", "root"), "needs a name"),
        (("--node",), "needs a name"),
        (("--name", "x", "--from-dir", "root", "--node"), "each say what the root is"),
        (("--name", "x", "--from-dir", "root", "--profile", "node"), "each say what the root is"),
        (("--name", "x", "--from-dir", "root", "--from-registry", "h/x@sha256:" + "0" * 64), "each say"),
        (("--name", "x", "--profile", "rust"), "there is no profile rust"),
        (("--profile", "node"), "needs a name"),
        (("--from-registry", "h/x@sha256:" + "0" * 64), "needs a name"),
        (("--name", "x", "--auth-file", "a"), "are for --from-registry"),
    ],
)
def test_wrong_use_is_told_before_anything_is_done(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    """`default` is what sandboxes take: nobody should replace it without having said so."""
    said = coatcheck("image", "build", *arguments, cwd=tmp_path, env={"COATCHECK_CACHE_DIR": "cache"})
    assert said.code == 2 and words in said.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_build_leaves_nothing(here: Path, number: signal.Signals) -> None:
    """Neither a half image nor files that fill the disk."""
    with (here / "root/large").open("wb") as file:
        os.truncate(file.fileno(), 2 * 1024**3)  # sparse here; reading it takes long enough to be interrupted
    with subprocess.Popen(
        [COATCHECK, "image", "build", "--name", "mine", "--from-dir", "root"],
        cwd=here,
        env=environment(COATCHECK_CACHE_DIR=str(here / "cache")),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stderr is not None
        while "reading" not in (line := running.stderr.readline()):
            assert line
        running.send_signal(number)
        assert running.wait(60) == (143 if number == signal.SIGTERM else 130)
    assert not list((here / "cache/images").rglob("*unfinished*"))
    assert json.loads(image(here, "list", "--json").out) == []


def test_two_builds_at_once_make_one_image(here: Path) -> None:
    """The second waits, and takes what the first has made."""
    command = [COATCHECK, "image", "build", "--name", "mine", "--from-dir", "root", "--json"]
    both = [
        subprocess.Popen(
            command,
            cwd=here,
            env=environment(COATCHECK_CACHE_DIR=str(here / "cache")),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    told = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert told[0] == told[1]
