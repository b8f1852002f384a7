"""`coatcheck policy check` as a person sees it."""

import json
from pathlib import Path

import pytest

from coatcheck.policy.shipped import POLICY
from tests.cli.transcript import coatcheck

BAD = """\
version: 1
owner: tests
rules:
  - name: a
    hosts: [API.example.com]
    methods: [GET]
    colour: red
"""


def test_check_says_line_column_and_what_to_write(tmp_path: Path) -> None:
    """As compilers do, so that editors can jump there; all mistakes at once."""
    (tmp_path / "bad.yaml").write_text(BAD)
    said = coatcheck("policy", "check", "bad.yaml", cwd=tmp_path)
    assert said.code == 1 and not said.err
    lines = said.out.splitlines()
    assert len(lines) == 3 and lines[2].startswith("why not-loaded: ")
    assert lines[0].startswith("bad.yaml:5:") and "api.example.com" in lines[0]
    assert lines[1].startswith("bad.yaml:7:5: error: ") and "colour" in lines[1]


def test_check_of_a_good_policy(policies: Path) -> None:
    """One line a file: what it is, so that a reviewer sees that the right one was read."""
    said = coatcheck("policy", "check", policies, cwd=policies.parent)
    digest = __import__("hashlib").sha256(POLICY.read_bytes()).hexdigest()[:16]
    ok = f"{policies}/default.yaml: ok, 5 rules, 4 credentials, sha256 {digest}\n"
    assert (said.code, said.out, said.err) == (0, ok, "")


def test_check_without_a_path_reads_what_the_daemon_would(policies: Path) -> None:
    """The setting, not a guess."""
    said = coatcheck("policy", "check", cwd=policies.parent, env={"COATCHECK_POLICY": str(policies)})
    assert said.code == 0 and "default.yaml: ok" in said.out


def test_check_for_a_program(policies: Path) -> None:
    """One JSON document; good and bad files in one answer."""
    (policies / "bad.yaml").write_text(BAD)
    said = coatcheck("policy", "check", policies, "--json", cwd=policies.parent)
    answer = {Path(each["file"]).name: each for each in json.loads(said.out)}
    assert said.code == 1
    assert answer["default.yaml"]["ok"] and not answer["bad.yaml"]["ok"] and not answer["bad.yaml"]["loads"]
    assert [found["line"] for found in answer["bad.yaml"]["findings"]] == [5, 7]
    assert {found["code"] for found in answer["bad.yaml"]["findings"]} == {"not-loaded"}
    assert all(found["why"] and found["instead"] for found in answer["bad.yaml"]["findings"])


WIDE = """\
version: 1
owner: tests
rules:
  - {name: a, hosts: ["*.github.io"], methods: [GET]}
"""
ACCEPTED = """\
accepted:
  - {finding: wildcard-public-suffix, rule: a, reason: pages of our customers, until: 2027-01-31}
  - {finding: no-sample, reason: they come next week, until: 2027-01-31}
"""


def test_a_warning_fails_until_the_file_accepts_it(tmp_path: Path) -> None:
    """With a reason, until a day: so a merge can be gated from the first day on."""
    file = tmp_path / "wide.yaml"
    file.write_text(WIDE)
    said = coatcheck("policy", "check", "wide.yaml", cwd=tmp_path)
    assert said.code == 1
    assert "wide.yaml:4:23: warning: *.github.io allows names of every customer" in said.out
    assert (
        "[wildcard-public-suffix]\n" in said.out and "\nwhy wildcard-public-suffix: Anybody can" in said.out
    )
    assert coatcheck("policy", "check", "wide.yaml", "--fail-on", "error", cwd=tmp_path).code == 0

    file.write_text(WIDE + ACCEPTED)
    accepted = coatcheck("policy", "check", "wide.yaml", "--today", "2027-01-31", cwd=tmp_path)
    assert accepted.code == 0 and accepted.out.startswith("wide.yaml: ok, 1 rule")
    assert accepted.out.endswith(", 2 accepted\n")
    over = coatcheck("policy", "check", "wide.yaml", "--today", "2027-02-01", cwd=tmp_path)
    assert over.code == 1 and over.out.count("which is over") == 2


def test_check_writes_sarif_beside_the_text(policies: Path) -> None:
    """One run gates the merge and shows its findings in the pull request."""
    (policies / "bad.yaml").write_text(BAD)
    said = coatcheck("policy", "check", policies, "--sarif", "out.sarif", cwd=policies.parent)
    assert said.code == 1 and "bad.yaml:5:" in said.out
    log = json.loads((policies.parent / "out.sarif").read_text())
    assert log["version"] == "2.1.0" and len(log["runs"][0]["results"]) == 2
    piped = coatcheck("policy", "check", policies, "--sarif", "-", cwd=policies.parent)
    assert json.loads(piped.out) == log


def test_samples_that_cannot_be_read_are_found(policies: Path) -> None:
    """In their own file, at their own line."""
    (policies / "samples/default.yaml").write_text("samples:\n  - {request: GET, expect: allow}\n")
    said = coatcheck("policy", "check", policies, cwd=policies.parent)
    assert said.code == 1
    assert f'{policies}/samples/default.yaml:2:15: error: "GET" is not a request' in said.out


@pytest.mark.parametrize("wrong", [("--fail-on", "note"), ("--today", "soon")])
def test_check_refuses_what_it_does_not_know(wrong: tuple[str, str], tmp_path: Path) -> None:
    """A gate with a misspelt option must not stand open."""
    said = coatcheck("policy", "check", "x.yaml", *wrong, cwd=tmp_path)
    assert said.code == 2 and said.error.startswith("error: ")


def test_check_refuses_a_directory_that_everybody_may_change(policies: Path) -> None:
    """As the daemon would: what is in it does not matter then."""
    policies.chmod(0o777)
    said = coatcheck("policy", "check", policies, cwd=policies.parent)
    assert said.code == 1 and "anyone can write here" in said.out


def test_check_of_what_is_not_there(tmp_path: Path) -> None:
    """A path that does not exist is not a policy that is bad."""
    said = coatcheck("policy", "check", "gone.yaml", cwd=tmp_path)
    assert (said.code, said.out) == (3, "")
    assert said.error == "error: gone.yaml does not exist\nhint: check the path\n"
