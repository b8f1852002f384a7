"""The grants file: strict, safe to read, and looked up in constant time."""

import hashlib
import os
from pathlib import Path

import pytest

from coatcheck.control.caller import Role
from coatcheck.control.grants import GrantsError, load_grants

GOOD = """
[[caller]]
name = "ci-launcher"
uid = 1001
role = "launcher"
tenants = ["acme"]
policies = ["default"]
isolation = ["emulated", "hardware"]
"""
SHA = hashlib.sha256(b"a token").hexdigest()


def written(path: Path, text: str, mode: int = 0o640) -> Path:
    file = path / "grants.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_caller_is_found_by_what_it_proves(tmp_path: Path) -> None:
    """By uid, by token; and the daemon's own user has every grant."""
    text = GOOD + f'[[caller]]\nname = "ops"\ntoken_sha256 = "{SHA}"\nrole = "operator"\ntenants = ["*"]\n'
    grants = load_grants(written(tmp_path, text), {5})
    launcher, ops, mine = grants.of_uid(1001), grants.of_token("a token"), grants.of_uid(5)
    assert launcher is not None and launcher.name == "ci-launcher" and launcher.tenants == {"acme"}
    assert ops is not None and ops.role is Role.OPERATOR
    assert mine is not None and mine.role is Role.OWNER
    assert grants.of_uid(1002) is grants.of_token("a token ") is grants.of_token("") is None


def test_without_a_file_only_the_daemons_own_users_are_callers() -> None:
    """Default deny."""
    grants = load_grants(None, {7})
    assert set(grants.by_uid) == {7}
    assert grants.of_token("anything") is None


OPS = 'name = "ops"\nrole = "operator"\ntenants = ["*"]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "caller: Field required"),
        ("caller = 1", "caller"),
        ("[[caller]\n", "not TOML"),
        (GOOD.replace("uid = 1001", ""), "exactly one way"),
        (GOOD.replace("uid = 1001", f'uid = 1001\ntoken_sha256 = "{SHA}"'), "exactly one way"),
        (GOOD.replace("uid = 1001", "uid = true"), "uid"),
        (GOOD.replace("uid = 1001", "uid = -1"), "uid"),
        (GOOD.replace("uid = 1001", "uid = 65534"), "nobody"),
        (GOOD.replace("uid = 1001", "uid = 5"), "every grant already"),
        (GOOD.replace("uid = 1001", 'token_sha256 = "A1"'), "token_sha256"),
        (GOOD.replace("uid = 1001", 'token = "plain"'), "Extra inputs"),
        (GOOD.replace('"launcher"', '"owner"'), "role"),
        (GOOD.replace('name = "ci-launcher"', 'name = "uid:5"'), "not a name"),
        (GOOD.replace('tenants = ["acme"]', "tenants = []"), "tenants"),
        (GOOD.replace('tenants = ["acme"]', ""), "tenants"),
        (GOOD.replace('policies = ["default"]', ""), "may open nothing"),
        (GOOD.replace('"emulated"', '"strong"'), "isolation"),
        (GOOD + GOOD, "the same name"),
        (GOOD + GOOD.replace("ci-launcher", "b"), "the same uid"),
        (GOOD.replace("uid = 1001", 'oidc_group = "ci"'), "only people"),
        (f'[[caller]]\n{OPS}oidc_email = ""\n', "oidc_email"),
        (f'[[caller]]\n{OPS}oidc_email = "a@x"\noidc_subject = "u"\n', "exactly one way"),
        (f'[[caller]]\n{OPS}uid = 9\npolicies = ["x"]\n', "mean nothing"),
        (f'[[caller]]\n{OPS}uid = 9\norigins = ["mtls"]\n', "mean nothing"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """And the message says which; it names no token."""
    with pytest.raises(GrantsError, match=says) as refused:
        load_grants(written(tmp_path, text), {5})
    assert refused.value.hint
    assert "plain" not in str(refused.value)


def test_an_openid_entry_is_found_by_what_the_provider_proved(tmp_path: Path) -> None:
    """By subject, mail or group, never by one as another; and it is no proof anywhere else."""
    entry = '[[caller]]\nname = "{}"\n{} = "x"\nrole = "operator"\ntenants = ["*"]\n'
    kinds = ("subject", "email", "group")
    text = "".join(entry.format(kind, f"oidc_{kind}") for kind in kinds)
    grants = load_grants(written(tmp_path, text), ())
    for kind in kinds:
        assert [each.name for each in grants.of_oidc(frozenset({f"{kind} x", "subject y"}))] == [kind]
        assert grants.proof_of(kind) == f"oidc {kind} x" and grants.of_name(kind) is not None
    assert len(grants.of_oidc(frozenset({"subject x", "group x"}))) == 2
    assert grants.of_oidc(frozenset({"x", "oidc x", "Email x"})) == ()
    assert grants.of_token("x") is None and grants.by_certificate == ()


@pytest.mark.parametrize("mode", [0o660, 0o602])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Anyone who can write it can make themselves a caller."""
    with pytest.raises(GrantsError, match="written by others"):
        load_grants(written(tmp_path, GOOD, mode), ())


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner can change its mode back at any time."""
    file = written(tmp_path, GOOD)
    os.chown(file, 54001, 54001)
    with pytest.raises(GrantsError, match="belongs to uid 54001"):
        load_grants(file, ())


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A FIFO would wait for ever, a directory is not TOML, and what is missing is said."""
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("fifo", "missing", "."):
        with pytest.raises(GrantsError):
            load_grants(tmp_path / name, ())


def test_control_uids_may_not_hold_nobody() -> None:
    """That is how every user of another user namespace looks."""
    with pytest.raises(GrantsError, match="65534"):
        load_grants(None, {65534})
