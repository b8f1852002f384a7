"""The shared state as the doctor finds it, with a real redis-server."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coatcheck.doctor.finding import Finding, Level
from coatcheck.doctor.fleet import shared_state
from tests.doctor.subject import only, subject
from tests.system.fleet.fleet import new_key
from tests.system.fleet.redis_server import RedisServer, redis_server
from tests.system.fleet.test_connection import PASSWORD, RIGHTS

pytestmark = pytest.mark.needs_debian("redis-server")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with (
        tempfile.TemporaryDirectory(prefix="cch-") as directory,
        redis_server(Path(directory) / "redis", acl=(f"user coatcheck on >{PASSWORD} {RIGHTS}",)) as made,
    ):
        yield made


def examined(
    server: RedisServer, directory: Path, user: str = "coatcheck@", **settings: Any
) -> list[Finding]:
    password = directory / "password"
    password.write_text(PASSWORD if user else server.admin_password)
    wanted: dict[str, Any] = {
        "shared_state": f"unix://{user}{server.socket}",
        "shared_state_key": new_key(directory / "key"),
        "shared_state_password_file": password,
    }
    return shared_state(subject(directory, **(wanted | settings)))


def test_nothing_is_said_where_nothing_is_shared(tmp_path: Path) -> None:
    """A laptop."""
    assert shared_state(subject(tmp_path)) == []


def test_the_least_rights_are_good(server: RedisServer, tmp_path: Path) -> None:
    """The line that the guide gives."""
    assert only(examined(server, tmp_path)).level is Level.OK


def test_rights_that_are_too_wide_and_eviction_are_found(server: RedisServer, tmp_path: Path) -> None:
    """An administrator's user, on a Redis that is also a cache."""
    server.admin().config_set("maxmemory-policy", "allkeys-lru")
    found = examined(server, tmp_path, user="")
    assert [each.level for each in found] == [Level.WARNING, Level.WARNING, Level.PROBLEM]
    assert "noeviction" in found[2].hint
    assert all(each.hint for each in found)


def test_a_key_that_others_may_read_is_found(server: RedisServer, tmp_path: Path) -> None:
    """The group: a warning, as Kubernetes mounts it so. Everybody: a problem."""
    key = new_key(tmp_path / "other-key")
    for mode, level in ((0o640, Level.WARNING), (0o644, Level.PROBLEM)):
        key.chmod(mode)
        assert only(examined(server, tmp_path, shared_state_key=key)).level is level


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"shared_state": "redis://127.0.0.1:1"}, "refused"),
        ({"shared_state_password_file": Path("none")}, "shared state's password"),
        ({"shared_state": "unix://nobody@{socket}"}, "invalid username-password pair"),
    ],
)
def test_what_cannot_be_reached_is_a_problem_with_its_reason(
    server: RedisServer, tmp_path: Path, settings: dict[str, object], why: str
) -> None:
    """And what to look at; the password is not in it."""
    made: dict[str, Any] = {
        name: str(value).replace("{socket}", str(server.socket)) for name, value in settings.items()
    }
    finding = only(examined(server, tmp_path, **made))
    assert finding.level is Level.PROBLEM
    assert why in finding.message
    assert PASSWORD not in finding.message
