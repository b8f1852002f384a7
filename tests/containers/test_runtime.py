"""What OCI runtimes tell of the sandboxes that they make."""

from pathlib import Path

from coatcheck.containers.runtime import written_number


def test_a_file_of_a_process_id_counts_once_it_is_written(tmp_path: Path) -> None:
    """runsc makes it and writes then; in between, a busy machine saw an empty one."""
    file = tmp_path / "pid"
    assert written_number(file) is None
    file.touch()
    assert written_number(file) is None
    file.write_text("4711")
    assert written_number(file) == 4711
