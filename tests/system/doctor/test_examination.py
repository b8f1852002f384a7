"""`coatcheck doctor` as a person sees it, on set-ups with mistakes and without."""

import asyncio
import contextlib
import json
import shutil
from functools import partial
from pathlib import Path

import hvac
import pytest

from coatcheck.doctor.examination import CHECKS
from coatcheck.policy.shipped import POLICY
from coatcheck.secrets.embedded import EmbeddedVault
from tests.cli.transcript import coatcheck
from tests.known_secrets import known_secret


def test_at_least_ten_kinds_of_mistakes_are_looked_for() -> None:
    """Each by a function of its own."""
    assert len(set(CHECKS)) == len(CHECKS) >= 10


def test_settings_that_cannot_be_read_are_the_finding(tmp_path: Path) -> None:
    """Nothing else can be said then."""
    said = coatcheck("doctor", cwd=tmp_path, env={"COATCHECK_PROXY_PORT": "many"})
    assert said.code == 1
    assert "problem  settings: COATCHECK_PROXY_PORT: Input should be a valid integer" in said.out
    assert said.out.endswith("1 problems, 0 warnings\n")


@pytest.mark.parametrize(
    ("env", "check", "hint"),
    [
        ({}, "secrets", "set COATCHECK_VAULT_URL, or name another store in the policy"),
        ({"COATCHECK_POLICY": "nowhere"}, "policy", "set COATCHECK_POLICY to a file or directory of *.yaml"),
    ],
)
def test_what_a_fresh_directory_lacks(tmp_path: Path, env: dict[str, str], check: str, hint: str) -> None:
    """What everybody forgets first: exit code 1, and what to set."""
    env |= {"COATCHECK_RUNTIME_DIR": "/tmp/cct-none", "HOME": str(tmp_path)}
    said = coatcheck("doctor", "--json", cwd=tmp_path, env=env)
    answer = json.loads(said.out)
    found = {each["check"]: each for each in answer["findings"]}
    assert (said.code, answer["ok"], said.err) == (1, False, "")
    assert (found[check]["level"], found[check]["hint"]) == ("problem", hint)
    assert found["control socket"]["level"] == "warning"


def _remove(name: str, client: hvac.Client) -> None:
    client.secrets.kv.v2.delete_metadata_and_all_versions(name)


async def test_what_a_user_has_is_asked_for_and_not_what_the_sample_names(
    bao: EmbeddedVault, tmp_path: Path
) -> None:
    """Who followed the README has one of the sample's secrets: a warning names the others, and it is no
    failure."""
    await bao.put("openai", {"api_key": known_secret("the only one")})
    for name in ("anthropic", "github"):
        with contextlib.suppress(Exception):  # an earlier test's
            await bao.call(partial(_remove, name))
    login = await bao.daemon_login(tmp_path)
    env = {
        "COATCHECK_VAULT_URL": bao.url,
        "COATCHECK_VAULT_LOGIN": "approle",
        "COATCHECK_VAULT_ROLE_ID": login.role_id,
        "COATCHECK_VAULT_SECRET_ID_FILE": str(login.secret_id_file),
        "COATCHECK_RUNTIME_DIR": "/tmp/cct-none",
        "HOME": str(tmp_path),
    }
    said = await asyncio.to_thread(coatcheck, "doctor", cwd=tmp_path, env=env)
    assert said.code == 0, said.out
    assert "warning  secrets: 1 can be used; not available: anthropic, github-api, github-git" in said.out
    assert "hint: for those that you need: printf %s " in said.out


async def test_a_good_set_up_has_no_problems_and_no_secret_is_shown(
    bao: EmbeddedVault, tmp_path: Path
) -> None:
    """All secrets of the sample policy are asked for; none of them stands in the answer."""
    secrets = {name: known_secret(f"doctor's {name}") for name in ("openai", "anthropic", "github")}
    for name, value in secrets.items():
        await bao.put(name, {"token" if name == "github" else "api_key": value})
    login = await bao.daemon_login(tmp_path)
    (tmp_path / "policies").mkdir(mode=0o755)
    shutil.copy(POLICY, tmp_path / "policies/default.yaml")
    env = {
        "COATCHECK_VAULT_URL": bao.url,
        "COATCHECK_VAULT_LOGIN": "approle",
        "COATCHECK_VAULT_ROLE_ID": login.role_id,
        "COATCHECK_VAULT_SECRET_ID_FILE": str(login.secret_id_file),
        "COATCHECK_RUNTIME_DIR": "/tmp/cct-none",
    }
    said = await asyncio.to_thread(coatcheck, "doctor", cwd=tmp_path, env=env)
    assert said.code == 0, said.out
    assert "ok       secrets: all 4 exist and are usable" in said.out
    assert not any(value in said.out + said.err for value in secrets.values())
