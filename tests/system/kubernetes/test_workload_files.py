"""What a pod's workload finds in the volume that it can read."""

import subprocess
from datetime import timedelta
from pathlib import Path

from coatcheck.certificates.authority import Authority
from coatcheck.kubernetes.workload_files import write_workload_files

HANDLES = {"OPENAI_API_KEY": "sk-cch_eyJ.'quoted'", "GITHUB_TOKEN": "ghp_x"}


def written(directory: Path, handles: dict[str, str]) -> Path:
    write_workload_files(directory, Authority.ephemeral("Ours", timedelta(days=1)).pem, handles)
    return directory


def test_a_program_is_started_with_handles_and_trust(tmp_path: Path) -> None:
    """By a shell of any kind, whatever stands in a value; its own arguments stay as they are."""
    written(tmp_path, HANDLES)
    program = ["sh", "-c", 'printf "%s|%s|%s" "$OPENAI_API_KEY" "$SSL_CERT_FILE" "$0"', "a  b"]
    ran = subprocess.run(
        [tmp_path / "with-handles", *program], env={}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{HANDLES['OPENAI_API_KEY']}|{tmp_path / 'ca-bundle.pem'}|a  b"


def test_its_exit_code_is_the_programs(tmp_path: Path) -> None:
    """It is the program by then: signals reach it, too."""
    assert subprocess.run([written(tmp_path, {}) / "with-handles", "sh", "-c", "exit 7"]).returncode == 7


def test_each_handle_is_a_file_that_every_user_of_the_pod_can_read(tmp_path: Path) -> None:
    """And that nobody but the proxy can change, wherever the volume is mounted writable."""
    written(tmp_path, HANDLES)
    for name, value in HANDLES.items():
        file = tmp_path / "handles" / name
        assert file.read_text() == value and file.stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "handles").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "with-handles").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "environment").stat().st_mode & 0o777 == 0o644


def test_a_name_that_is_no_variable_makes_no_file_and_no_line(tmp_path: Path) -> None:
    """A policy's `env` is checked elsewhere; here it would be a path, and shell."""
    written(tmp_path, {"../x": "1", "A;touch B": "2", "GOOD": "3"})
    assert [each.name for each in (tmp_path / "handles").iterdir()] == ["GOOD"]
    assert "touch" not in (tmp_path / "environment").read_text()


def test_a_new_session_replaces_what_was_there(tmp_path: Path) -> None:
    """Handles of the one before that this one lacks, too: they would be refused, and reported."""
    written(tmp_path, HANDLES)
    written(tmp_path, {"GITHUB_TOKEN": "ghp_y"})
    assert [each.name for each in (tmp_path / "handles").iterdir()] == ["GITHUB_TOKEN"]
    assert "OPENAI" not in (tmp_path / "environment").read_text()
