"""Wrong settings, told by variable or key, without their values."""

from pathlib import Path

import pytest

from coatcheck.settings.daemon import Settings
from coatcheck.settings.explained import SettingsProblem, describe, load_settings


def problem(monkeypatch: pytest.MonkeyPatch, **variables: str) -> SettingsProblem:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsProblem) as caught:
        load_settings()
    return caught.value


def test_options_that_were_not_given_leave_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is no value; what is given is stronger than the environment."""
    monkeypatch.setenv("COATCHECK_PROXY_PORT", "8080")
    assert load_settings(proxy_port=None).proxy_port == 8080
    assert load_settings(proxy_port=0).proxy_port == 0


def test_lists_that_are_not_json_show_how_to_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest mistake with a setting that has several values."""
    found = problem(monkeypatch, COATCHECK_ALLOWED_NETWORKS="10.0.0.0/8")
    assert str(found).startswith("COATCHECK_ALLOWED_NETWORKS is not JSON")
    assert "COATCHECK_ALLOWED_NETWORKS='[" in found.hint
    monkeypatch.delenv("COATCHECK_ALLOWED_NETWORKS")
    assert "api.example.com:443" in problem(monkeypatch, COATCHECK_CONNECT_TO="a:1").hint


def test_every_wrong_setting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody likes to be told one by one; the values are not repeated."""
    found = problem(monkeypatch, COATCHECK_PROXY_PORT="hidden", COATCHECK_VAULT_LOGIN="hidden")
    assert [line.partition(":")[0] for line in str(found).splitlines()] == [
        "COATCHECK_PROXY_PORT",
        "COATCHECK_VAULT_LOGIN",
    ]
    assert "hidden" not in f"{found}{found.hint}"


def test_what_does_not_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two settings that need each other."""
    assert "belong together" in str(problem(monkeypatch, COATCHECK_PROXY_CLIENT_CA="ca.pem"))


def test_an_option_a_variable_and_a_key_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is named as its writer knows it."""
    with pytest.raises(SettingsProblem, match=r"^--proxy-port: "):
        load_settings(proxy_port=70000)
    config = tmp_path / "config.toml"
    config.write_text("proxy_port = 70000\n")
    assert str(problem(monkeypatch, COATCHECK_CONFIG=str(config))).startswith(f"proxy_port in {config}: ")


def test_every_setting_is_described() -> None:
    """`coatcheck serve --settings` and the operator's guide are made of these lines."""
    described = describe()
    assert len(described) == len(Settings.model_fields)
    assert all(meaning for _, _, meaning in described)
    assert ("COATCHECK_PROXY_PORT", "unset") in {(name, default) for name, default, _ in described}
