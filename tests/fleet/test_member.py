"""A daemon with shared state begins and ends like any other, whatever is wrong around it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from coatcheck.decision.policy import Limit, LimitKind, LimitScope
from coatcheck.fleet.connection import Connector, SharedStateDown
from coatcheck.fleet.member import member_of, open_state
from coatcheck.fleet.store import Store
from coatcheck.platform.private_files import PrivateFileError
from coatcheck.settings.daemon import Settings
from coatcheck.state.buckets import Buckets
from coatcheck.state.shared_database import SharedDatabase
from coatcheck.telemetry.recent import Recent
from tests.system.fleet.fleet import PATIENCE, new_key


def _settings(directory: Path, **more: object) -> Settings:
    url = f"postgresql://coatcheck@/coatcheck?host={directory}/none"
    nobody = {"shared_state": url, "shared_state_key": new_key(directory / "key")}
    return Settings(state_dir=directory / "state", **(nobody | more))  # type: ignore[arg-type]


async def test_one_that_was_never_started_stops(tmp_path: Path) -> None:
    """Its policies were bad: the reason must be the last thing that is told."""
    settings = _settings(tmp_path)
    state = open_state(settings, tmp_path / "sessions", lambda event: None, None)
    member = member_of(settings, state, lambda event: None)
    assert member is not None
    await member.stop()
    state.close()


async def test_without_a_database_it_starts_refuses_and_stops(tmp_path: Path) -> None:
    """Whichever of the two is started first."""
    from coatcheck.request.approvals import Approvals

    settings = _settings(tmp_path)
    state = open_state(settings, tmp_path / "sessions", lambda event: None, None)
    member = member_of(settings, state, lambda event: None)
    assert member is not None
    member.start(Buckets(), Approvals(lambda event: None, state.clock.now), Recent())
    async with asyncio.timeout(20):
        while (denied := state.stale(state.clock.now())) is not None and "/none" not in denied.detail:
            await asyncio.sleep(0.01)
    assert denied is not None
    await member.stop()
    state.close()


async def test_one_whose_commands_hang_stops_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a statement waits for, in neither of its threads."""
    from coatcheck.request.approvals import Approvals

    for module in ("follower", "limits"):
        monkeypatch.setattr(f"coatcheck.fleet.{module}.LEAVING_SECONDS", 0.2, raising=False)
    resolved, stuck = Event(), [Event(), Event()]

    def hangs(which: int) -> Callable[..., None]:
        def command(store: Store, *about: object, **more: object) -> None:
            stuck[which].set()
            resolved.wait(PATIENCE)
            raise SharedStateDown("no such host")

        return command

    monkeypatch.setattr(Store, "listen", hangs(0))
    monkeypatch.setattr(Store, "settle", hangs(1))
    settings = _settings(tmp_path)
    state = open_state(settings, tmp_path / "sessions", lambda event: None, None)
    member = member_of(settings, state, lambda event: None)
    assert member is not None
    member.start(Buckets(), Approvals(lambda event: None, state.clock.now), Recent())
    limit = Limit(LimitKind.REQUESTS, 1, 60.0, 1, LimitScope.TENANT)
    member.limits.began([(limit, ("agents", "acme"))], 0.0)
    try:
        await asyncio.to_thread(lambda: [each.wait(PATIENCE) for each in stuck])
        async with asyncio.timeout(PATIENCE / 2):
            await member.stop()
        assert not resolved.is_set()
    finally:
        resolved.set()
    state.close()


def test_without_the_setting_nothing_is_shared(tmp_path: Path) -> None:
    """The embedded store, which never is deaf."""
    settings = Settings(state_dir=tmp_path)
    state = open_state(settings, tmp_path / "sessions", lambda event: None, None)
    assert member_of(settings, state, lambda event: None) is None
    assert state.stale(state.clock.now()) is None
    assert state.replica is None
    assert not isinstance(state.database, SharedDatabase)
    state.close()


def test_a_bad_key_stops_the_start(tmp_path: Path) -> None:
    """Rather than a daemon that hears nobody."""
    settings = _settings(tmp_path)
    (tmp_path / "key").chmod(0o644)
    state = open_state(settings, tmp_path / "sessions", lambda event: None, None)
    with pytest.raises(PrivateFileError):
        member_of(settings, state, lambda event: None)
    state.close()


def test_without_the_extra_one_error_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg is not among what everybody installs."""
    import sys

    monkeypatch.delitem(sys.modules, "coatcheck.fleet.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    server = _settings(tmp_path).shared_state_server
    assert server is not None
    with pytest.raises(SharedStateDown, match=r"coatcheck\[fleet\]"):
        Connector(server, PATIENCE, "tests").connect()
