import base64
from pathlib import Path

import pytest

from tests.known_secrets import found_in, known_secret, needles, remember_secret
from tests.secret_grep import leaks_below, leaks_in

_INNER = """
import sys
from tests.known_secrets import known_secret

def test_daemon(output_dir):
    (output_dir / "audit.jsonl").write_text({written})

def test_prints():
    print({printed})
"""


@pytest.mark.parametrize("before", ["", "x", "xy", "xyz", "user:"])
@pytest.mark.parametrize("after", ["", "z", "zz"])
def test_a_secret_is_found_plain_and_in_base64_wherever_it_starts(before: str, after: str) -> None:
    """Base64 of `user:secret` holds none of the secret's letters: all three alignments are looked for."""
    value = before + known_secret("grep") + after
    assert leaks_in(f"… {value} …".encode(), needles()) == {"grep"}
    assert leaks_in(base64.b64encode(value.encode()), needles()) == {"grep, in Base64"}


@pytest.mark.parametrize("around", [b"", b" ", b"x", b"x" * 40, b"\n", b"\0" * 70, bytes(range(256))])
@pytest.mark.parametrize(
    "needle",
    [
        b"short",
        b"a-run_of+16/char",
        b"a run of words and spaces",
        b"AKIA0123456789:of/a+pair",
        bytes(range(48)),
    ],
)
def test_a_needle_is_found_wherever_it_stands_and_nowhere_else(needle: bytes, around: bytes) -> None:
    """What is looked for in runs of letters alone is what would be found in everything, letter by letter."""
    assert found_in(around + needle + around, {needle: "it"}) == {"it"}
    parts = around + needle[:-1] + b" " + needle[-1:] + around
    assert found_in(parts, {needle: "it"}) == ({"it"} if needle in parts else set())


def test_innocent_text_is_no_leak() -> None:
    """The name of a secret, another value of its shape and a masked handle may stand in a log."""
    assert (
        leaks_in(b'{"credential": "grep", "value": "sk-test-********", "handle": "cch_ey..."}', needles())
        == set()
    )


def test_a_secret_across_two_chunks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files are read in chunks; a secret on a chunk's edge must not slip through."""
    monkeypatch.setattr("tests.secret_grep._CHUNK", 64)
    (tmp_path / "log").write_text("." * 50 + known_secret("grep") + "." * 200)
    assert list(leaks_below(tmp_path, needles())) == [f"{tmp_path / 'log'}: grep"]


def test_short_values_are_not_registered() -> None:
    """A short value would be found everywhere, and such a hit would say nothing."""
    with pytest.raises(ValueError, match="too short"):
        remember_secret("short", "hunter2")


@pytest.mark.parametrize(
    ("written", "printed", "named"),
    [
        ('known_secret("inner")', '"fine"', "audit.jsonl: inner"),
        ('"cch_eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2ln"', '"fine"', "audit.jsonl: a handle"),
        ('"fine"', 'known_secret("inner")', "test_prints, captured stdout call: inner"),
    ],
    ids=["secret in a file", "handle in a file", "secret printed"],
)
def test_a_run_that_leaks_fails_and_names_the_place(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, written: str, printed: str, named: str
) -> None:
    """The grep is worth something only if a leak turns a run red although every test passed."""
    result = _inner_run(pytester, monkeypatch, written, printed)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"*{named}"])


def test_a_leak_in_a_worker_fails_the_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """With -n the tests run in other processes, each with secrets of its own."""
    result = _inner_run(pytester, monkeypatch, 'known_secret("inner")', '"fine"', "-n", "2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*audit.jsonl: inner"])


def test_a_clean_run_passes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """… and only a leak does."""
    assert _inner_run(pytester, monkeypatch, '"fine"', '"fine"').ret == pytest.ExitCode.OK


def _inner_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, written: str, printed: str, *arguments: str
) -> pytest.RunResult:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    pytester.makeconftest('pytest_plugins = ["tests.secret_grep"]')
    pytester.makepyfile(_INNER.format(written=written, printed=printed))
    # Plugins that take seconds to import and have no part in this.
    without = ("cacheprovider", "schemathesis", "hypothesispytest", "langsmith_plugin", "anyio")
    plugins = [argument for name in without for argument in ("-p", f"no:{name}")]
    return pytester.runpytest_subprocess(*plugins, *arguments)
