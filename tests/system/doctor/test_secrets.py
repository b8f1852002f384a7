"""Vault and secrets: really asked, and nothing of a secret told."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from coatcheck.decision.policy import Policy
from coatcheck.doctor.finding import Finding, Level, Subject
from coatcheck.doctor.secrets import compare_clocks, stores
from coatcheck.policy import load_policy
from coatcheck.secrets.embedded import EmbeddedVault
from tests.doctor.subject import only, subject
from tests.known_secrets import known_secret

POLICY = """\
version: 1
owner: tests
credentials:
  one:
    secret: {ref}
    hosts: [api.example.com]
    inject: {{header: Authorization, value: "Bearer {{secret}}"}}
rules:
  - name: all
    hosts: [api.example.com]
    methods: [GET]
    credentials: [one]
"""


def policies(ref: str) -> dict[str, Policy]:
    return {"default": load_policy("default", POLICY.format(ref=ref).encode())}


async def examine(given: Subject) -> dict[str, Finding]:
    """By check; the checks run a loop of their own, so in a thread."""
    found = await asyncio.to_thread(stores, given)
    assert all(each.level is Level.OK or each.hint for each in found)
    return {each.check: each for each in found}


@pytest.fixture
async def vault(bao: EmbeddedVault, tmp_path: Path) -> dict[str, Any]:
    """Settings that log in to a real OpenBao, which has one good secret."""
    await bao.put(
        "doctor", {"good": known_secret("doctor's"), "short": "tiny", "newline": "0123456789abcdef\n"}
    )
    login = await bao.daemon_login(tmp_path)
    return {
        "vault_url": bao.url,
        "vault_login": "approle",
        "vault_role_id": login.role_id,
        "vault_secret_id_file": login.secret_id_file,
    }


async def test_a_good_set_up_is_said_to_be_good(vault: dict[str, Any], tmp_path: Path) -> None:
    """Login, clocks, secrets: each was looked at."""
    found = await examine(subject(tmp_path, policies=policies("vault:secret/doctor#good"), **vault))
    assert {check: each.level for check, each in found.items()} == {
        "vault": Level.OK,
        "clock against vault": Level.OK,
        "secrets": Level.OK,
    }


@pytest.mark.parametrize(
    ("field", "said"),
    [("nosuch", "has no field 'nosuch'"), ("short", "shorter than 16"), ("newline", "line break")],
)
async def test_a_secret_that_is_missing_or_unusable(
    field: str, said: str, vault: dict[str, Any], tmp_path: Path
) -> None:
    """Which credential of which policy, why, and how to put it; not what it is."""
    found = await examine(subject(tmp_path, policies=policies(f"vault:secret/doctor#{field}"), **vault))
    secrets = found["secrets"]
    assert secrets.level is Level.PROBLEM and said in secrets.message
    assert secrets.message.startswith("credential one of policy default: ")
    assert "tiny" not in str(secrets) and "0123456789abcdef" not in str(secrets)


async def test_a_path_that_the_role_may_not_read(bao: EmbeddedVault, tmp_path: Path) -> None:
    """Vault's 403 is told apart from a missing secret."""
    token = await bao.call(
        lambda client: client.auth.token.create(
            policies=["default"], no_parent=True, ttl="1h", renewable=True
        )
    )
    (tmp_path / "token").write_text(token["auth"]["client_token"])
    (tmp_path / "token").chmod(0o600)
    given: dict[str, Any] = {"vault_url": bao.url, "vault_token_file": tmp_path / "token"}
    found = await examine(subject(tmp_path, policies=policies("vault:secret/doctor#good"), **given))
    assert found["vault"].level is Level.OK
    assert found["secrets"].level is Level.PROBLEM and "permission denied (403)" in found["secrets"].message


async def test_a_login_that_is_refused(vault: dict[str, Any], tmp_path: Path) -> None:
    """Said once, and not again for each secret."""
    (tmp_path / "wrong").write_text("00000000-0000-0000-0000-000000000000")
    (tmp_path / "wrong").chmod(0o600)
    given = vault | {"vault_secret_id_file": tmp_path / "wrong"}
    found = await examine(subject(tmp_path, policies=policies("vault:secret/doctor#good"), **given))
    assert found["vault"].level is Level.PROBLEM and "secrets" not in found


async def test_a_vault_that_is_not_there(vault: dict[str, Any], tmp_path: Path) -> None:
    """Nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        url = f"http://127.0.0.1:{once.getsockname()[1]}"
    found = await examine(subject(tmp_path, **vault | {"vault_url": url}))
    assert found["vault"].level is Level.PROBLEM and "cannot be reached" in found["vault"].message


async def test_tokens_that_end_soon_or_never(bao: EmbeddedVault, tmp_path: Path) -> None:
    """A token without renewal leaves the daemon without secrets; a root token may do everything."""

    async def with_token(**options: Any) -> Finding:
        made = await bao.call(lambda client: client.auth.token.create(no_parent=True, **options))
        (tmp_path / "token").unlink(missing_ok=True)
        (tmp_path / "token").write_text(made["auth"]["client_token"])
        (tmp_path / "token").chmod(0o600)
        found = await examine(subject(tmp_path, vault_url=bao.url, vault_token_file=tmp_path / "token"))
        return found["vault"]

    ends = await with_token(policies=["default"], ttl="60s", renewable=False)
    assert ends.level is Level.PROBLEM and "cannot be renewed and ends in" in ends.message
    later = await with_token(policies=["default"], ttl="2h", renewable=False)
    assert later.level is Level.WARNING and "cannot be renewed" in later.message
    never = await with_token(policies=["root"], ttl="0")
    assert never.level is Level.WARNING and "never expires" in never.message


async def test_settings_of_vault_that_do_not_fit(tmp_path: Path) -> None:
    """A login without its material, and a URL that would send the token in the clear."""
    found = await examine(subject(tmp_path, vault_url="https://vault.example.com", vault_login="jwt"))
    assert "set COATCHECK_VAULT_JWT_FILE" in found["vault"].message
    found = await examine(subject(tmp_path, vault_url="http://vault.example.com", vault_token_file=Path("t")))
    assert found["vault"].level is Level.PROBLEM and "must be https://" in found["vault"].message


async def test_a_store_that_nobody_configured(tmp_path: Path) -> None:
    """The policy names Vault, the settings do not."""
    found = await examine(subject(tmp_path, policies=policies("vault:secret/doctor#good")))
    assert found["secrets"].level is Level.PROBLEM and found["secrets"].hint.startswith(
        "set COATCHECK_VAULT_URL"
    )


async def test_secrets_in_files_with_open_modes(tmp_path: Path) -> None:
    """The file store refuses what others may read."""
    (tmp_path / "secrets/mine").mkdir(parents=True)
    (tmp_path / "secrets/mine/one").write_text(known_secret("in a file"))
    (tmp_path / "secrets/mine/one").chmod(0o644)
    given = subject(tmp_path, policies=policies("file:mine/one#value"), secrets_dir=tmp_path / "secrets")
    assert "open to others" in (await examine(given))["secrets"].message
    (tmp_path / "secrets/mine/one").chmod(0o600)
    assert (await examine(given))["secrets"].level is Level.OK


def test_clocks_that_differ() -> None:
    """Half a minute is where logins begin to fail."""
    assert only(compare_clocks("clock", 1000.0, 1029.0)).level is Level.OK
    ahead, behind = (
        only(compare_clocks("clock", 1100.0, 1000.0)),
        only(compare_clocks("clock", 900.0, 1000.0)),
    )
    assert ahead.level is behind.level is Level.PROBLEM
    assert "100 s ahead of vault" in ahead.message and "100 s behind vault" in behind.message
