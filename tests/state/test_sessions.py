"""The snapshot: an origin belongs to the session that has it now."""

from dataclasses import replace

import pytest

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.decision.session import Now
from coatcheck.state import StateError, StateSettings
from coatcheck.state.sessions import Sessions, new_session, renewed
from tests.state.house import POLICIES, WANTED
from tests.state.test_database import SESSION

NOW = Now(1_000.0, 50.0)


def test_a_closed_session_does_not_take_its_origin_back() -> None:
    """Nor does forgetting it take the origin from the one that has it now."""
    old, new = SESSION, replace(SESSION, id="ses_b")
    sessions = Sessions().having(old).having(new).having(replace(old, revoked=True))
    assert sessions.by_origin == {SESSION.origin: new}
    assert sessions.having(without=[old]).by_origin == {SESSION.origin: new}
    assert sessions.having(without=[new]).by_origin == {}


def test_a_snapshot_is_never_changed() -> None:
    """A reader that holds one reads the same to the end."""
    before = Sessions().having(SESSION)
    after = before.having(replace(SESSION, revoked=True), epoch=True)
    assert not before.by_id[SESSION.id].revoked and after.by_id[SESSION.id].revoked
    assert (before.epoch, after.epoch) == (0, 1)


def test_a_new_session_has_what_was_asked_for() -> None:
    """With the defaults of the settings where nothing was."""
    origin = Origin(OriginClass.ADDRESS, "shared|10.0.0.7")
    session = new_session(replace(WANTED, origin=origin), POLICIES, StateSettings(), "launcher", NOW)
    assert (session.origin, session.opened_by, session.credentials) == (
        origin,
        "launcher",
        frozenset({"openai"}),
    )
    assert (session.expires_at, session.lease_deadline) == (1_000.0 + 12 * 3_600, 50.0 + 120)


def test_a_renewal_never_shortens_a_lease() -> None:
    """A power cut that undoes it can then only make the lease shorter."""
    long = renewed(SESSION, 600, StateSettings(), NOW)
    assert long.lease_deadline == 650.0
    assert renewed(long, 10, StateSettings(), NOW).lease_deadline == 650.0
    with pytest.raises(StateError):
        renewed(SESSION, 601, StateSettings(), NOW)
