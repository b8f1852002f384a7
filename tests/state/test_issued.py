"""New handles are random, bound to their session, and forgotten when they have expired."""

from dataclasses import replace

import pytest

from coatcheck.decision.handle import Claims
from coatcheck.decision.policy import Shape
from coatcheck.decision.session import Now
from coatcheck.state import StateError
from coatcheck.state.issued import IssuedHandles, mint
from tests.state.house import credential
from tests.state.test_database import SESSION

NOW = Now(1_000.5, 50.0)
GHP = Shape("ghp_", 36)


def unsigned(claims: Claims) -> str:
    return "cch_" + claims.jti


def test_a_handle_outlives_neither_its_wish_nor_its_session() -> None:
    """Whole seconds, rounded down."""
    for ttl, expires in ((None, 2_000), (9_999.0, 2_000), (60.0, 1_060)):
        minted, issued = mint(SESSION, credential("c"), NOW, ttl, unsigned)
        assert minted.expires_at == issued.claims.expires_at == expires
        assert (issued.claims.sid, issued.claims.generation) == (SESSION.id, SESSION.generation)


@pytest.mark.parametrize("ttl", [0.0, -5.0, 0.4])
def test_a_handle_that_would_be_dead_is_not_minted(ttl: float) -> None:
    """A clear error instead of a handle that is refused at its first use."""
    with pytest.raises(StateError, match="expire at once"):
        mint(SESSION, credential("c"), NOW, ttl, unsigned)


def test_no_two_handles_are_alike() -> None:
    """Ids and references are random."""
    made = [mint(SESSION, credential("c", GHP), NOW, None, unsigned) for _ in range(500)]
    assert len({minted.value for minted, _ in made}) == len({minted.jti for minted, _ in made}) == 500


@pytest.mark.parametrize("shape", [Shape("ghp_", 19), Shape("gh", 36), Shape("", 36)])
def test_a_shape_that_could_be_guessed_or_met_by_chance_is_refused(shape: Shape) -> None:
    """Too short a reference, or a prefix that stands in every request."""
    with pytest.raises(StateError, match="too weak"):
        mint(SESSION, credential("c", shape), NOW, None, unsigned)


def test_the_index_forgets_all_of_a_handle() -> None:
    """Its reference stops counting with it."""
    minted, issued = mint(SESSION, credential("c", GHP), NOW, None, unsigned)
    index = IssuedHandles([issued])
    assert index.references == {issued.digest: issued.claims} and index.shapes == (GHP,)
    assert index.expired(replace(NOW, wall=1_999.0)) == []
    assert index.expired(replace(NOW, wall=2_000.0)) == [issued]
    index.revoke(SESSION.id, minted.jti)
    assert index.revoked_of(SESSION.id) == {minted.jti}
    index.drop(index.of(SESSION.id))
    assert (index.references, index.of(SESSION.id), index.by_session) == ({}, (), {})
