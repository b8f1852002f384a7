"""`coatcheck ca`: its less common options, and after a theft."""

from pathlib import Path

import pytest

from coatcheck.certificates.authority import Authority
from tests.cli.transcript import coatcheck


def test_new_takes_name_constraints(tmp_path: Path) -> None:
    """Clients believe it for these domains only."""
    arguments = ("--name-constraint", "openai.com", "--name-constraint", "github.com", "--name", "Team CA")
    said = coatcheck("ca", "new", "--dir", "ca", *arguments, cwd=tmp_path)
    assert said.code == 0
    made = Authority.load(tmp_path / "ca")
    assert made.permits("api.openai.com") and not made.permits("example.org")
    assert "Team CA" in made.certificate.subject.rfc4514_string()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--days", "100000"], "a CA lives at least a moment and at most 3650 days"),
        (["--name", "x" * 65], "a CA's name has 1 to 64 printable characters"),
        (["--name-constraint", "*.x"], "give plain lower-case domains such as example.com"),
    ],
)
def test_new_says_what_it_does_not_take(arguments: list[str], error: str, tmp_path: Path) -> None:
    """Nothing is made."""
    said = coatcheck("ca", "new", "--dir", "ca", *arguments, cwd=tmp_path)
    assert said.code == 3 and error in said.error
    assert not (tmp_path / "ca/ca.pem").exists()


def test_bundle_without_a_ca(tmp_path: Path) -> None:
    """What to do next stands there."""
    said = coatcheck("ca", "bundle", "--dir", "ca", cwd=tmp_path)
    assert (said.code, said.out) == (3, "")
    assert said.error == "error: there is no CA in ca\nhint: make one: coatcheck ca new\n"


def test_env_refuses_a_proxy_that_no_client_could_use(tmp_path: Path) -> None:
    """Before anything is printed that a shell would evaluate."""
    coatcheck("ca", "new", "--dir", "ca", cwd=tmp_path)
    said = coatcheck("ca", "env", "--dir", "ca", "--out", "t", "--proxy", "https://x", cwd=tmp_path)
    assert (said.code, said.out) == (3, "") and "must look like http://127.0.0.1:8080" in said.error


def test_after_a_theft_the_new_one_is_trusted_alone(tmp_path: Path) -> None:
    """`ca new --force` forgets the successor and the one before, whose keys lay beside the stolen one."""
    for arguments in (("new",), ("new", "--next"), ("switch",), ("new", "--next"), ("new", "--force")):
        assert coatcheck("ca", *arguments, "--dir", "ca", cwd=tmp_path).code == 0
    assert coatcheck("ca", "env", "--dir", "ca", "--out", "trust", cwd=tmp_path).code == 0
    assert (tmp_path / "trust/coatcheck-ca.pem").read_bytes() == Authority.load(tmp_path / "ca").pem
