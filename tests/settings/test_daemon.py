"""Settings: one reader of the environment, and no typo goes unnoticed."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from coatcheck.settings.daemon import Settings, UnknownSetting, load


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in tuple(os.environ):
        if name.startswith("COATCHECK_"):
            monkeypatch.delenv(name)


def test_the_environment_is_stronger_than_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the command line is stronger than both."""
    file = tmp_path / "coatcheck.toml"
    file.write_text('secret_ttl = 5.0\nlog_level = "debug"\nsession_lease = 7\n')
    monkeypatch.setenv("COATCHECK_CONFIG", str(file))
    monkeypatch.setenv("COATCHECK_SECRET_TTL", "6")
    monkeypatch.setenv("COATCHECK_SESSION_LEASE", "8")
    settings = load(session_lease=9)
    assert (settings.secret_ttl, settings.log_level, settings.session_lease) == (6.0, "debug", 9.0)


def test_a_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would silently leave a default in force."""
    monkeypatch.setenv("COATCHECK_VAULT_ULR", "https://vault.example")
    with pytest.raises(UnknownSetting, match="COATCHECK_VAULT_ULR"):
        load()


def test_an_unknown_key_in_the_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the environment."""
    file = tmp_path / "coatcheck.toml"
    file.write_text("secret_tll = 5.0\n")
    monkeypatch.setenv("COATCHECK_CONFIG", str(file))
    with pytest.raises(ValidationError):
        load()


def test_a_configuration_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting without it would start with other settings than meant."""
    monkeypatch.setenv("COATCHECK_CONFIG", "/nonexistent/coatcheck.toml")
    with pytest.raises(FileNotFoundError):
        load()


@pytest.mark.parametrize(
    "wrong",
    [
        {"allowed_networks": ("10.0.0.1/8",)},
        {"allowed_networks": ("everything",)},
        {"secret_ttl": 0},
        {"max_sessions": -1},
        {"proxy_port": 70000},
        {"vault_login": "password"},
        {"log_level": "loud"},
        {"proxy_client_ca": Path("ca.pem")},
        {"otel_endpoint": "collector:4318"},
        {"otel_endpoint": "https://user:pass@collector:4318"},
        {"otel_endpoint": "https://collector:port"},
        {"otel_endpoint": "https://collector:4318/v1/traces"},
        {"otel_endpoint": "https://collector:4318/?key=x"},
        {"otel_endpoint": "http://collector:4318", "otel_headers_file": Path("token")},
        {"otel_endpoint": "https://collector:4318", "otel_signals": ()},
        {"otel_endpoint": "https://collector:4318", "otel_signals": ("metrics",)},
        {"otel_headers_file": Path("token")},
        {"otel_ca_file": Path("ca.pem")},
    ],
)
def test_values_that_make_no_sense_are_errors(wrong: dict[str, object]) -> None:
    """At the start, not at the first request."""
    with pytest.raises(ValidationError):
        load(**wrong)


def test_a_collectors_token_may_cross_loopback_in_the_clear_and_nothing_else() -> None:
    """A sidecar is reached so; beyond it there is TLS."""
    for endpoint in ("http://127.0.0.1:4318", "http://[::1]:4318", "https://collector.example/otlp"):
        assert load(otel_endpoint=endpoint, otel_headers_file=Path("token")).otel_endpoint == endpoint
    assert load(otel_endpoint="http://collector:4318").otel_headers_file is None


def test_every_setting_is_described() -> None:
    """docs/reference/settings.md is made from these words."""
    assert all(field.description for field in Settings.model_fields.values())


def test_a_token_given_as_a_setting_is_not_printed() -> None:
    """Settings end up in logs and tracebacks."""
    token = "hvs.this-is-not-to-be-printed"
    assert token not in repr(load(vault_token=token))
