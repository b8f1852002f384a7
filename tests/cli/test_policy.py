"""`coatcheck policy …` as a person sees it."""

import json
from pathlib import Path

import pytest

from coatcheck.policyfile.models import json_schema
from coatcheck.samples import POLICY
from tests.cli.transcript import coatcheck

ROOT = Path(__file__).parent.parent.parent
BAD = """\
version: 1
owner: tests
rules:
  - name: a
    hosts: [API.example.com]
    methods: [GET]
    colour: red
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A directory with the sample policy and its samples."""
    directory = tmp_path / "policies"
    (directory / "samples").mkdir(parents=True)
    (directory / "default.yaml").write_bytes(POLICY.read_bytes())
    (directory / "samples/default.yaml").write_bytes((ROOT / "policies/samples/default.yaml").read_bytes())
    for path in (directory, directory / "default.yaml"):
        path.chmod(0o755)
    return directory


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


def test_the_samples_pass(policies: Path) -> None:
    """The samples beside a policy are found by its name."""
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 0, said.out
    count = (policies / "samples/default.yaml").read_text().count("- request:") + (
        policies / "samples/default.yaml"
    ).read_text().count("- name:")
    assert said.out == f"{policies}/default.yaml: {count} of {count} samples as expected\n"


def test_a_sample_that_is_answered_otherwise_fails(policies: Path) -> None:
    """It says which, what was expected and what came."""
    samples = policies / "samples/default.yaml"
    samples.write_text("samples:\n  - request: GET https://evil.example/\n    expect: allow\n")
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 1
    assert said.out.splitlines() == [
        f"{policies}/default.yaml: GET https://evil.example/: expected allow, got deny host_not_allowed",
        f"{policies}/default.yaml: 0 of 1 samples as expected",
    ]


def test_a_policy_without_samples_is_not_tested(policies: Path) -> None:
    """Silence would look like success."""
    (policies / "samples/default.yaml").unlink()
    said = coatcheck("policy", "test", policies, cwd=policies.parent)
    assert said.code == 1
    assert said.out == f"{policies}/default.yaml: no samples at {policies}/samples/default.yaml\n"


def test_explain_says_which_rule_and_which_credential(policies: Path) -> None:
    """And why not the others: one line each."""
    said = coatcheck(
        "policy", "explain", "POST", "https://api.openai.com/v1/responses",
        "--policy", policies / "default.yaml", cwd=policies.parent,
    )  # fmt: skip
    assert said.code == 0
    lines = said.out.splitlines()
    assert (
        lines[0]
        == "POST https://api.openai.com/v1/responses: allowed by 'openai model calls' of policy default"
    )
    assert "  -> openai: put in where its handle stands" in lines
    assert "     github api, read only: it is for api.github.com" in lines


def test_explain_of_a_refusal_is_a_no(policies: Path) -> None:
    """Exit code 1, so that a pipeline can ask."""
    said = coatcheck(
        "policy", "explain", "DELETE", "https://api.openai.com/v1/models",
        "--policy", policies / "default.yaml", "--json", cwd=policies.parent,
    )  # fmt: skip
    answer = json.loads(said.out)
    assert (said.code, answer["allowed"], answer["reason"]) == (1, False, "method_not_allowed")
    assert answer["rules"][0]["name"] == "openai model calls"


def test_explain_finds_a_policy_of_the_setting_by_name(policies: Path) -> None:
    """`--policy default` is what the daemon calls default."""
    arguments = ("policy", "explain", "GET", "https://api.github.com/user", "--policy")
    env = {"COATCHECK_POLICY": str(policies)}
    assert coatcheck(*arguments, "default", cwd=policies.parent, env=env).code == 0
    said = coatcheck(*arguments, "nosuch", cwd=policies.parent, env=env)
    assert said.code == 3
    assert said.error.startswith("error: there is no policy 'nosuch', neither as a file nor in ")


def test_explain_takes_headers(policies: Path) -> None:
    """A WebSocket upgrade is another question."""
    arguments = ("policy", "explain", "GET", "https://api.openai.com/v1/models", "--policy", "default.yaml")
    plain = coatcheck(*arguments, cwd=policies)
    upgrade = coatcheck(*arguments, "-H", "Upgrade: websocket", "-H", "Connection: upgrade", cwd=policies)
    assert (plain.code, upgrade.code) == (0, 1)
    said = coatcheck(*arguments, "-H", "nonsense", cwd=policies)
    assert said.code == 2 and "'nonsense' is not a header" in said.error


@pytest.mark.parametrize("url", ["https://api.openai.com./", "https://0x7f.1/", "https://API.openai.com/"])
def test_explain_refuses_odd_hosts_as_the_proxy_does(url: str, policies: Path) -> None:
    """It explains, and repairs nothing."""
    said = coatcheck("policy", "explain", "GET", url, "--policy", "default.yaml", cwd=policies)
    assert said.code == 1 and "refused" in said.out


def test_the_schema_is_the_one_in_the_repository(tmp_path: Path) -> None:
    """Editors read policies/schema.json; it is what the models say."""
    said = coatcheck("policy", "schema", cwd=tmp_path)
    assert said.code == 0
    assert json.loads(said.out) == json_schema() == json.loads((ROOT / "policies/schema.json").read_text())


def test_the_shipped_sample_is_the_repositorys_policy() -> None:
    """A wheel has no policies/ directory; what it ships must not go its own way."""
    assert POLICY.read_bytes() == (ROOT / "policies/default.yaml").read_bytes()
