import pytest

from tests import debian


@pytest.fixture
def a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "packages", lambda: {"no-such-program": "no-such-package"})


@pytest.mark.usefixtures("a_package_that_is_missing")
def test_a_missing_program_skips_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside CI the reader is told which package to install."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs no-such-program: apt-get install no-such-package"):
        debian.need("no-such-program")


@pytest.mark.usefixtures("a_package_that_is_missing")
def test_in_ci_a_missing_program_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A skip would let a machine pass on which nothing was tested."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no-such-package"):
        debian.need("no-such-program")


def test_a_program_that_setup_would_not_install_is_an_error() -> None:
    """Otherwise a test would pass here and be skipped on every new machine."""
    with pytest.raises(ValueError, match="scripts/debian-packages"):
        debian.need("cowsay")


@pytest.mark.needs_debian("git")
def test_what_is_there_is_run() -> None:
    """The marker lets a test through on a machine that has the program."""
    assert debian.find("git")
