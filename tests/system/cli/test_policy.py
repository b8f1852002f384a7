"""`coatcheck policy explain|schema` as a person sees it."""

import json
from pathlib import Path

import pytest

from coatcheck.policy.editor_schema import policy_schema, samples_schema
from coatcheck.policy.shipped import POLICY
from tests.cli.transcript import coatcheck

ROOT = Path(__file__).parent.parent.parent.parent


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
    assert "  -> openai: injected in place of its handle" in lines
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
    """Editors read policies/schema.json; it is what the models say. Samples have one of their own."""
    said, samples = (coatcheck("policy", "schema", *more, cwd=tmp_path) for more in ((), ("--samples",)))
    assert json.loads(said.out) == policy_schema()
    assert json.loads(samples.out) == samples_schema()


def test_the_shipped_sample_is_the_repositorys_policy() -> None:
    """A wheel has no policies/ directory; what it ships must not go its own way."""
    assert POLICY.read_bytes() == (ROOT / "policies/default.yaml").read_bytes()
