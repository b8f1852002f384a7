"""What a daemon must know that comes after this one: written, read, also as older versions wrote it."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from coatcheck.durable import run_directory
from coatcheck.durable.autoscale import Autoscale
from coatcheck.durable.elastic import Elastic, Scaling
from tests.durable.test_recovery import DEAD

SANDBOX = replace(
    DEAD, sessions={"agent": "ses_1"}, elastic=Elastic(256, 512, 1, 2, Scaling.OUTSIDE, Autoscale())
)
OLD = (
    '{"id": "sbx_1", "tenant": "acme", "subject": "agent", "policy": "default", "opened_by": "launcher",'
    ' "backend": "microvm", "isolation": "emulated", "why": "why", "sessions": {"agent": "ses_1"},'
    ' "created_at": 1000000.0, "expires_at": 1009000.0, "memory_mib": 256, "cpus": 1, "disk_mib": 16,'
    ' "processes": 64, "elastic": {"min_memory_mib": 256, "max_memory_mib": 512, "min_cpus": 1,'
    ' "max_cpus": 2, "scaling": "outside", "autoscale": {"up_percent": 75, "down_percent": 40,'
    ' "cooldown_seconds": 60.0, "down_after_seconds": 900.0}}, "shares_memory": false,'
    ' "keeping": {"lifecycle": null, "sleeps": false, "rotates": false, "recovers": true,'
    ' "every_seconds": null}, "state": "ended", "ending": "machine_ended", "detail": "",'
    ' "recoverable": true}'
)
"""As it was written while a sandbox had four fields for what are its resources now."""


def test_a_sandbox_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With its resources as one value."""
    run_directory.describe(tmp_path, SANDBOX)
    assert run_directory.read(tmp_path) == SANDBOX
    written = json.loads((tmp_path / run_directory.DESCRIPTION).read_bytes())
    assert written["resources"] == asdict(SANDBOX.resources) and "memory_mib" not in written


def test_what_an_older_version_wrote_is_read(tmp_path: Path) -> None:
    """A daemon that was updated adopts the sandboxes of the one before."""
    (tmp_path / run_directory.DESCRIPTION).write_text(OLD)
    assert run_directory.read(tmp_path) == SANDBOX


@pytest.mark.parametrize("content", ["", "{}", "[]", OLD.replace('"cpus": 1, ', ""), OLD[:-20]])
def test_what_is_no_sandbox_is_none(tmp_path: Path, content: str) -> None:
    """Its directory is swept."""
    (tmp_path / run_directory.DESCRIPTION).write_text(content)
    with pytest.raises(ValueError, match="validation error"):
        run_directory.read(tmp_path)


def test_a_directory_is_locked_as_long_as_somebody_cares(tmp_path: Path) -> None:
    """One whose lock is free is nobody's."""
    assert not run_directory.is_locked(tmp_path)
    held = run_directory.lock(tmp_path)
    assert run_directory.is_locked(tmp_path)
    os.close(held)
    assert not run_directory.is_locked(tmp_path)
