"""What a state needs from its directory, or the reason why nothing in there can be trusted any more."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coatcheck.decision.session import Now
from coatcheck.platform.private_files import open_private_directory
from coatcheck.state.clock import Clock
from coatcheck.state.database import Database
from coatcheck.state.journal import Journal
from coatcheck.state.shared_database import SharedDatabase
from coatcheck.state.signing_keys import SigningKeys

DATABASE_NAME: Final = "sessions.db"


@dataclass(frozen=True, slots=True)
class Stored:
    database: Database
    keys: SigningKeys
    lost: str
    """`state_lost` or `state_rolled_back` when everything was dropped, else empty."""
    detail: str


def open_stored(directory: Path, clock: Clock, seen_version: int | None, *, shared: bool) -> Stored:
    """The database and the keys in `directory`, made if there are none; `State.open` says the rest."""
    open_private_directory(directory)
    database = (SharedDatabase if shared else Database)(directory / DATABASE_NAME)
    try:
        clock.raise_to(database.high_water)
        now = clock.now()
        version = database.version
        behind = seen_version is not None and version < seen_version
        if behind or database.is_new:
            keys = SigningKeys.new(directory, now.wall)
        else:
            keys = SigningKeys.open(directory, now.wall)
        if seen_version is not None and behind:
            _forget(database, seen_version, now)
    except BaseException:
        database.close()
        raise
    lost = "state_lost" if database.is_new else "state_rolled_back"
    detail = f"version {version}, the audit log has seen {seen_version}: everything was revoked"
    return Stored(database, keys, lost if behind else "", detail)


def _forget(database: Database, seen_version: int, now: Now) -> None:
    with Journal(database).giving(now):
        database.forget_all()
        database.set_version(seen_version)
