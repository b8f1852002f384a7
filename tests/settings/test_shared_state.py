"""Where the shared state is, and which settings belong together."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from coatcheck.settings.daemon import Settings, UnknownSetting, load

KEY = Path("key")


@pytest.mark.parametrize(
    ("url", "where", "database", "user", "tls"),
    [
        ("postgresql://db.example.org", "db.example.org:5432", "coatcheck", None, True),
        ("postgresql://coat@10.0.0.7:6380/fleet", "10.0.0.7:6380", "fleet", "coat", True),
        ("postgres://coat@[2001:db8::1]:6380/fleet", "2001:db8::1:6380", "fleet", "coat", True),
        ("postgresql://coat@one,two:7000/fleet", "one:5432,two:7000", "fleet", "coat", True),
        ("postgresql://coat@127.0.0.1,two/fleet", "127.0.0.1:5432,two:5432", "fleet", "coat", True),
        ("postgresql://127.0.0.1:7000/", "127.0.0.1:7000", "coatcheck", None, False),
        (
            "postgresql://coat%20check@/my%20own?host=/run/pg",
            "/run/pg (my own)",
            "my own",
            "coat check",
            False,
        ),
        ("postgresql://u@:5433/fleet?host=/run/pg", "/run/pg (fleet)", "fleet", "u", False),
    ],
)
def test_each_form_is_understood(url: str, where: str, database: str, user: str | None, tls: bool) -> None:
    """Hosts, ports, database, user, and whether it is encrypted."""
    server = Settings(shared_state=url, shared_state_key=KEY).shared_state_server
    assert server is not None
    assert (str(server), server.database, server.user, server.tls) == (where, database, user, tls)
    assert server.verified is tls


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://user:password@db.example.org", "password"),
        ("postgresql://db.example.org/a/b", "write shared_state as"),
        ("postgresql://db.example.org/a?sslmode=disable", "write shared_state as"),
        ("postgresql://db.example.org/a?host=/run/pg", "write shared_state as"),
        ("postgresql://u@/a?host=run/pg", "write shared_state as"),
        ("postgresql:///a", "write shared_state as"),
        ("postgresql://one,/a", "write shared_state as"),
        ("postgresql://db.example.org:99999", "write shared_state as"),
        ("postgresql://db.example.org\n", "write shared_state as"),
        ("http://db.example.org", "write shared_state as"),
        ("db.example.org:5432", "write shared_state as"),
    ],
)
def test_what_would_be_unsafe_or_unclear_is_refused(url: str, why: str) -> None:
    """No password in the URL, and no option that switches verification off."""
    with pytest.raises(ValidationError, match=why):
        Settings(shared_state=url, shared_state_key=KEY)


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1", "rediss://redis.example.org:6379", "unix:///run/redis.sock", "valkey://v"]
)
def test_a_redis_is_refused_with_what_takes_its_place(url: str) -> None:
    """An operator who upgrades is told what to write."""
    with pytest.raises(ValidationError, match=r"PostgreSQL, not in Redis .* postgresql://user@host"):
        Settings(shared_state=url, shared_state_key=KEY)


def test_what_counted_replicas_is_refused_with_what_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file and in the environment."""
    with pytest.raises(ValidationError, match="synchronous_standby_names"):
        Settings(shared_state_replicas=1)  # type: ignore[call-arg]
    monkeypatch.setenv("COATCHECK_SHARED_STATE_REPLICAS", "1")
    with pytest.raises(UnknownSetting, match="synchronous_standby_names"):
        load()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"shared_state": "postgresql://h"}, "needs shared_state_key"),
        ({"shared_state_key": KEY}, "no effect without shared_state"),
        ({"shared_state_user_file": KEY}, "no effect without shared_state"),
        (
            {"shared_state": "postgresql:///d?host=/r", "shared_state_key": KEY, "shared_state_ca_file": KEY},
            "no effect on a Unix socket",
        ),
        (
            {"shared_state": "postgresql://u@h", "shared_state_key": KEY, "shared_state_user_file": KEY},
            "keep one",
        ),
        ({"shared_state_name": "a{b}"}, "pattern"),
        ({"shared_state_max_silence": 0.5}, "greater than or equal"),
        ({"shared_state_max_silence": 600}, "less than or equal"),
    ],
)
def test_settings_that_mean_nothing_together_are_refused(settings: dict[str, object], why: str) -> None:
    """A key that nobody uses is a mistake."""
    with pytest.raises(ValidationError, match=why):
        Settings(**settings)  # type: ignore[arg-type]


def test_on_loopback_a_server_that_has_a_certificate_must_show_it() -> None:
    """TLS is off there unless a CA is given."""
    given = Settings(shared_state="postgresql://localhost", shared_state_key=KEY, shared_state_ca_file=KEY)
    server = given.shared_state_server
    assert server is not None
    assert (server.tls, server.verified) == (False, True)


def test_by_default_nothing_is_shared() -> None:
    """The laptop's state is its own."""
    assert Settings().shared_state_server is None
