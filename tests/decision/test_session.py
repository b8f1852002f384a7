"""Whose request it is, and whether it may act at all."""

from dataclasses import replace

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Origin, OriginClass, Peer
from coatcheck.decision.session import Isolation, Now, alive, identify, isolation_at_least
from tests.decision.test_decide import SESSION

CERTIFICATE = Origin(OriginClass.MTLS, "ab" * 32)
ADDRESS = Origin(OriginClass.ADDRESS, "proxy|10.0.0.1")


def test_two_origins_that_name_two_sessions_are_a_contradiction() -> None:
    """A certificate of one sandbox from the address of another is refused, and reported."""
    one, other = replace(SESSION, origin=CERTIFICATE), replace(SESSION, id="ses_b", origin=ADDRESS)
    peer = Peer("proxy", (CERTIFICATE, ADDRESS))
    verdict = identify(peer, {CERTIFICATE: one, ADDRESS: other}, Now(1, 1))
    assert isinstance(verdict, Deny)
    assert verdict.alarm


def test_the_origin_that_is_known_decides() -> None:
    """Evidence that no session uses is ignored."""
    session = replace(SESSION, origin=ADDRESS)
    assert identify(Peer("proxy", (CERTIFICATE, ADDRESS)), {ADDRESS: session}, Now(1, 1)) is session


@pytest.mark.parametrize(
    ("now", "revoked", "why"),
    [
        (Now(1, 99.999), False, None),
        (Now(1, 100), False, Reason.LEASE_LAPSED),
        (Now(1000, 1), False, Reason.SESSION_EXPIRED),
        (Now(1000, 100), True, Reason.SESSION_REVOKED),
    ],
)
def test_a_session_ends_by_lease_age_or_revocation(now: Now, revoked: bool, why: Reason | None) -> None:
    """At the deadline it is over, not after it; revocation is the strongest word."""
    denial = alive(replace(SESSION, revoked=revoked), now)
    assert (denial.reason if denial else None) is why


def test_isolation_is_a_ladder() -> None:
    """Hardware satisfies every demand, none satisfies only none; gVisor stands above namespaces."""
    assert isolation_at_least(Isolation.GVISOR, Isolation.NAMESPACE)
    ladder = tuple(reversed(Isolation))
    for i, have in enumerate(ladder):
        for j, want in enumerate(ladder):
            assert isolation_at_least(have, want) is (i >= j)
