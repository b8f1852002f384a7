"""The SQL that an operator runs; tests/system/fleet runs it on a real database."""

import pytest

from coatcheck.cli import run_command_line
from coatcheck.fleet import schema


def test_the_commands_print_what_there_is_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Roles and schema once, tables for each release, by the fleet's name."""
    assert run_command_line(["fleet", "roles", "--name", "web"]) == 0
    assert capsys.readouterr().out == schema.roles_sql("web")
    assert run_command_line(["fleet", "tables", "--name", "web"]) == 0
    assert capsys.readouterr().out == schema.tables_sql("web")


def test_a_name_that_is_sql_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It stands in statements."""
    assert run_command_line(["fleet", "tables", "--name", 'x"; DROP SCHEMA y; --']) == 2
    captured = capsys.readouterr()
    assert (captured.out, "a-z" in captured.err) == ("", True)


def test_every_version_has_its_step_and_the_newest_is_ours() -> None:
    """A step that is missing would leave a daemon without its tables."""
    assert sorted(schema.STEPS) == list(range(1, schema.VERSION + 1))
    assert all(oldest <= version for version, (_, oldest) in schema.STEPS.items())
