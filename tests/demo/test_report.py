import io

import pytest

from demo.report import WIDTH, Report, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def everything(stream: io.StringIO) -> Report:
    report = Report(stream)
    report.line("word " * 40)
    report.headline("A headline")
    report.field("label", "word " * 40)
    report.columns((10, 20), ("x" * 30, "y" * 30), "bold")
    report.check(False, "it differs")
    return report


def test_a_pipe_gets_plain_text_that_fits() -> None:
    """No escape sequences, no line over a hundred columns."""
    stream = io.StringIO()
    everything(stream)
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert max(map(len, lines)) <= WIDTH
    assert "  label      word word" in stream.getvalue()


def test_a_terminal_gets_colours() -> None:
    """And the same words."""
    stream = Terminal()
    everything(stream)
    assert "\x1b[1;36mA headline" in stream.getvalue()


def test_what_a_sandbox_says_cannot_steer_the_terminal() -> None:
    """Escape sequences and line breaks of a stranger become spaces."""
    stream = Terminal()
    report = Report(stream)
    report.field("said", "\x1b[2Jgone\r\nfake: ok")
    report.columns((40,), ("\x1b]0;title\x07",))
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()
    assert printable("a\x00b\u202ec") == "a b c"


def test_cells_are_cut_so_that_columns_stay_columns() -> None:
    """A long one loses its end, visibly."""
    stream = io.StringIO()
    Report(stream).columns((5, 5), ("abcdefgh", "z"))
    assert stream.getvalue() == "  abcd… z\n"


def test_an_outcome_is_said_only_if_its_block_held() -> None:
    """One failed check in a block, and its good end is not claimed."""
    stream = io.StringIO()
    report = Report(stream)
    report.headline("One")
    report.check(False, "it went wrong")
    assert not report.outcome("all is well")
    report.headline("Two")
    report.check(True, "it went right")
    assert report.outcome("the second is well")
    said = stream.getvalue()
    assert (
        "DIFFERS: it went wrong" in said and "all is well" not in said and "[ok] the second is well" in said
    )
    assert (report.differed, report.checks) == (["it went wrong"], 2)
