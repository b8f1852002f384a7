"""`coatcheck approval …` without a daemon, and without anything that waits; e2e/ answers real requests."""

from pathlib import Path

from tests.cli.transcript import coatcheck


def test_without_a_daemon_it_says_so(tmp_path: Path) -> None:
    """What to start, and exit code 3."""
    for words in (("list",), ("yes", "apr_0123456789abcdef"), ("no", "apr_0123456789abcdef")):
        said = coatcheck("approval", *words, "--socket", tmp_path / "none.sock", cwd=tmp_path)
        assert said.code == 3 and said.err.startswith("error: ") and "hint: " in said.err


def test_help_has_an_example_of_each(tmp_path: Path) -> None:
    """A person who is paged has no time to guess."""
    for word in ("list", "yes", "no"):
        assert f"coatcheck approval {word}" in coatcheck("approval", word, "--help", cwd=tmp_path).out
