"""`coatcheck policy check` as a person sees it."""

import json
from pathlib import Path

from coatcheck.samples import POLICY
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
    assert len(lines) == 2
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
    assert answer["default.yaml"]["ok"] and not answer["bad.yaml"]["ok"]
    assert [found["line"] for found in answer["bad.yaml"]["problems"]] == [5, 7]


def test_check_refuses_a_directory_that_everybody_may_change(policies: Path) -> None:
    """As the daemon would: what is in it does not matter then."""
    policies.chmod(0o777)
    said = coatcheck("policy", "check", policies, cwd=policies.parent)
    assert said.code == 1 and "everybody may write here" in said.out


def test_check_of_what_is_not_there(tmp_path: Path) -> None:
    """A path that does not exist is not a policy that is bad."""
    said = coatcheck("policy", "check", "gone.yaml", cwd=tmp_path)
    assert (said.code, said.out) == (3, "")
    assert said.error == "error: gone.yaml does not exist\nhint: check the path\n"
