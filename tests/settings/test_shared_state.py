"""Where the shared state is, and which settings belong together."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from coatcheck.settings.daemon import Settings

KEY = Path("key")


@pytest.mark.parametrize(
    ("url", "where", "user", "tls"),
    [
        ("rediss://redis.example.org", "redis.example.org:6379", None, True),
        ("rediss://coatcheck@10.0.0.7:6380/", "10.0.0.7:6380", "coatcheck", True),
        ("redis://127.0.0.1:7000", "127.0.0.1:7000", None, False),
        ("unix:///run/redis.sock", "unix:///run/redis.sock", None, False),
        ("unix://coat%20check@/run/redis.sock", "unix:///run/redis.sock", "coat check", False),
        ("unix:///my%20own/redis.sock", "unix:///my own/redis.sock", None, False),
    ],
)
def test_each_form_is_understood(url: str, where: str, user: str | None, tls: bool) -> None:
    """Host, port, user, and whether it is encrypted."""
    server = Settings(shared_state=url, shared_state_key=KEY).shared_state_server
    assert server is not None
    assert (str(server), server.user, server.tls) == (where, user, tls)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://redis.example.org:6379", "in the clear"),
        ("rediss://user:password@redis.example.org", "password"),
        ("rediss://redis.example.org/1", "write shared_state as"),
        ("rediss://redis.example.org?ssl_cert_reqs=none", "write shared_state as"),
        ("http://redis.example.org", "write shared_state as"),
        ("unix://host/run/redis.sock", "write shared_state as"),
        ("rediss://redis.example.org:99999", "write shared_state as"),
        ("rediss://redis.example.org\n", "write shared_state as"),
        ("redis.example.org:6379", "write shared_state as"),
    ],
)
def test_what_would_be_unsafe_or_unclear_is_refused(url: str, why: str) -> None:
    """No password in the URL, no option that switches verification off, nothing in the clear."""
    with pytest.raises(ValidationError, match=why):
        Settings(shared_state=url, shared_state_key=KEY)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"shared_state": "redis://127.0.0.1"}, "needs shared_state_key"),
        ({"shared_state_key": KEY}, "no effect without shared_state"),
        (
            {"shared_state": "redis://127.0.0.1", "shared_state_key": KEY, "shared_state_ca_file": KEY},
            "rediss",
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


def test_by_default_nothing_is_shared() -> None:
    """The laptop's state is its own."""
    assert Settings().shared_state_server is None
