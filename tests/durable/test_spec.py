"""What a supervisor of a durable sandbox is told arrives as it was said."""

import json
from pathlib import Path

import pytest

from coatcheck.durable.autoscale import Autoscale
from coatcheck.durable.elastic import Elastic, Scaling
from coatcheck.durable.spec import DurableSpec, IdleAction, Saving, dumps, loads
from tests.launcher.scripted import identity, spec


def test_a_spec_survives_its_way_through_a_pipe(tmp_path: Path) -> None:
    """One line of JSON, with everything in it."""
    said = DurableSpec(
        spec(tmp_path, [identity(tmp_path)]),
        Saving(tmp_path / "one", 7, tmp_path / "key", 128, tmp_path / "snapshots"),
        Elastic(512, 1024, 1, 2, Scaling.OUTSIDE, Autoscale(up_percent=80)),
        tmp_path / "store",
        ("ses_0",),
        idle_action=IdleAction.SLEEP,
        unbound=True,
    )
    line = dumps(said)
    assert line.count(b"\n") == 1 and loads(line) == said
    plain = DurableSpec(said.sandbox)
    assert loads(dumps(plain)) == plain


def test_a_refusal_of_a_spec_quotes_nothing_of_it(tmp_path: Path) -> None:
    """It goes to a log, and the spec holds handles."""
    said = json.loads(dumps(DurableSpec(spec(tmp_path, [identity(tmp_path)]))))
    said["sandbox"]["identities"][0]["environment"]["KEY"] = ["a handle"]
    with pytest.raises(ValueError, match=r"sandbox\.identities\.0\.environment\.KEY") as refused:
        loads(json.dumps(said).encode())
    assert "a handle" not in str(refused.value) and "handle" not in repr(DurableSpec(spec(tmp_path, [])))


def test_its_supervisor_inherits_what_it_names(tmp_path: Path) -> None:
    """The directory's lock, and the memory that clones share."""
    told = spec(tmp_path, [identity(tmp_path)], lock=5)
    assert DurableSpec(told).descriptors == (5,)
    assert DurableSpec(told, Saving(template=6)).descriptors == (5, 6)
