"""Policy files that are being written, changed while they are read, or cannot be read for a while."""

import os
from pathlib import Path

import pytest

from coatcheck.policy import PolicyError, watch
from coatcheck.policy.file.loading import Parse, load_file
from coatcheck.policy.watch import RETRY_SECONDS, PolicyWatch

NARROW = """version: 1
owner: tests
rules:
  - name: models
    hosts: [api.openai.com]
    methods: [GET]
    paths: [/v1/models]
"""
WIDE = NARROW[: NARROW.index("    paths")]
"""Its first half: a valid policy that allows every path."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "default.yaml"
    path.write_text(NARROW)
    path.chmod(0o644)
    return path


def test_files_are_read_when_they_stand_still(file: Path) -> None:
    """Half a file that allows more than the whole is passed over while it grows."""
    watched = PolicyWatch(file)
    assert watched.read()["default"].rules[0].paths
    assert not watched.due() and not watched.due()
    for half in (WIDE, WIDE + "    pa", NARROW + "# more\n"):
        file.write_text(half)
        assert not watched.due()
    assert watched.due()
    watched.read()
    assert not watched.due()


def test_a_file_that_changes_while_it_is_read_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is then neither the old one nor the new one."""
    watched, load = PolicyWatch(file), load_file

    def slowly(path: Path, parse: Parse) -> object:
        policy = load(path, parse)
        path.write_text(NARROW + "# more\n")
        return policy

    with monkeypatch.context() as patch:
        patch.setattr(watch, "load_file", slowly)
        with pytest.raises(PolicyError, match="changed while"):
            watched.read()
    assert not watched.due()
    assert watched.due()
    assert watched.read()


def test_what_was_refused_is_tried_again(file: Path) -> None:
    """It may have been our fault: no descriptor, no memory. But not every second: parsing costs."""
    now = 1000.0
    watched = PolicyWatch(file, clock=lambda: now)
    file.write_text("")
    with pytest.raises(PolicyError):
        watched.read()
    assert not watched.due() and not watched.due()
    now += RETRY_SECONDS
    assert watched.due()
    os.unlink(file)
    with pytest.raises((PolicyError, OSError)):
        watched.read()
    file.write_text(NARROW)
    file.chmod(0o644)
    assert not watched.due()
    assert watched.due() and watched.read()
