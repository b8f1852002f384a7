"""What a supervisor is told arrives as it was said."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.filesystem import Filesystem
from coatcheck.launcher.spec import dumps, loads
from coatcheck.sandbox.machine import Volume
from coatcheck.sandbox.resources import Size
from tests.launcher.scripted import MACHINE, identity, spec


def test_a_spec_survives_its_way_through_a_pipe(tmp_path: Path) -> None:
    """One line of JSON, with everything in it."""
    said = spec(
        tmp_path,
        [identity(tmp_path), identity(tmp_path, "tool", 1001)],
        machine=replace(MACHINE, image=tmp_path, volumes=(Volume(tmp_path, "acme", "work", "/work", 64),)),
        filesystem=Filesystem(("/home/agent",), ("/etc/secret",)),
        agent=tmp_path / "agent",
        idle_seconds=1.5,
    )
    said = replace(said, machine=replace(said.machine, starts_with=Size(512, 1)))
    line = dumps(said)
    assert line.count(b"\n") == 1 and loads(line) == said
    plain = replace(said, filesystem=None, agent=None, machine=MACHINE)
    assert loads(dumps(plain)) == plain


def test_it_is_not_shown_by_accident(tmp_path: Path) -> None:
    """Handles are in it: no repr, and so no traceback, has them."""
    assert "handle of" not in repr(spec(tmp_path, [identity(tmp_path)]))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"not JSON"])
def test_what_is_no_spec_is_refused(content: bytes) -> None:
    """A supervisor that was started by hand ends at once."""
    with pytest.raises(ValueError, match="no sandbox's spec"):
        loads(content)


def test_a_refusal_of_a_spec_quotes_nothing_of_it(tmp_path: Path) -> None:
    """It goes to a log, and the spec holds handles."""
    said = json.loads(dumps(spec(tmp_path, [identity(tmp_path)])))
    said["identities"][0]["environment"]["KEY"] = ["a handle"]
    with pytest.raises(ValueError, match=r"environment\.KEY") as refused:
        loads(json.dumps(said).encode())
    assert "a handle" not in str(refused.value) and refused.value.__cause__ is None
