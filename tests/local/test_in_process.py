"""A daemon inside this process: secrets that were given come first, and paths that cannot work are told."""

from pathlib import Path

import pytest

from coatcheck.local.in_process import OwnDaemonError, own_daemon, private_directory, with_given
from coatcheck.policy.checking import load_file
from coatcheck.policy.shipped import POLICY
from coatcheck.secrets import SecretMissing
from coatcheck.secrets.memory import MemoryStore
from coatcheck.settings.daemon import Settings
from tests.known_secrets import known_secret


async def test_given_secrets_stand_before_the_store() -> None:
    """For each reference of the credential; everything else still comes from behind."""
    policies = {"default": load_file(POLICY)}
    openai, anthropic = (policies["default"].credentials[name].secret for name in ("openai", "anthropic"))
    behind = MemoryStore({str(openai): known_secret("behind"), str(anthropic): known_secret("behind")})
    stores = with_given({"vault": behind}, policies, {"openai": known_secret("given")})
    assert (await stores["vault"].fetch(openai)).reveal() == known_secret("given")
    assert (await stores["vault"].fetch(anthropic)).reveal() == known_secret("behind")
    alone = with_given({}, policies, {"openai": known_secret("given")})
    assert (await alone["vault"].fetch(openai)).reveal() == known_secret("given")
    with pytest.raises(SecretMissing):
        await alone["vault"].fetch(anthropic)


def test_a_secret_for_a_credential_that_is_not_there() -> None:
    """With those that are."""
    with pytest.raises(OwnDaemonError) as caught:
        with_given({}, {"default": load_file(POLICY)}, {"opanai": "x"})
    assert caught.value.hint == "it has: anthropic, github-api, github-git, openai"


async def test_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    """Before anything is made there."""
    settings = Settings(state_dir=tmp_path / ("x" * 100))
    with pytest.raises(OwnDaemonError, match="longer than a socket's path may be"):
        async with own_daemon(settings, {}):
            raise AssertionError("it started")
    assert not list(tmp_path.iterdir())


def test_a_directory_of_our_own_is_private_and_removed(tmp_path: Path) -> None:
    """One that was named is left alone."""
    with private_directory(None) as made:
        assert made.stat().st_mode & 0o777 == 0o700
    assert not made.exists()
    with private_directory(tmp_path) as given:
        assert given == tmp_path
    assert tmp_path.exists()
