"""Synthetic addresses: a pure function of the name, and evidence against those who lie about it."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.address import screen
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.host import canonical_host
from coatcheck.decision.message import OriginalDestination
from coatcheck.decision.synthetic import IPV4, IPV6, contradiction, synthetic

NAMES = st.integers(0, 10**9).map(lambda number: f"n{number}.example")


def test_the_addresses_of_a_name_never_change() -> None:
    """Clients keep them for days, and every daemon of a fleet gives the same."""
    found = synthetic("api.openai.com")
    assert found is not None
    assert str(found.ipv4) == "198.18.251.103"
    assert str(found.ipv6) == "fd63:6f61:7463:b3f7:8cc:998f:933:8c0c"


@given(NAMES)
def test_they_are_in_our_ranges_and_lead_nowhere(name: str) -> None:
    """Not the ends of a range; and whatever goes wrong, an upstream at one of them is refused."""
    found = synthetic(name)
    assert found is not None
    assert found.ipv4 in IPV4
    assert found.ipv6 in IPV6
    assert found.ipv4 not in (IPV4[0], IPV4[-1])
    assert found.ipv6 not in (IPV6[0], IPV6[-1])
    assert screen(str(found.ipv4)) is not None
    assert screen(str(found.ipv6)) is not None


@pytest.mark.parametrize("literal", ["203.0.113.7", "198.18.0.1", "2001:db8::1", "fd63:6f61:7463::1"])
def test_an_address_is_no_name(literal: str) -> None:
    """It has no other address."""
    assert synthetic(canonical_host(literal)) is None


@given(NAMES, NAMES, st.integers(1, 65_535))
def test_an_address_of_ours_speaks_for_its_own_name_only(name: str, other: str, port: int) -> None:
    """Of either family. What another resolver told proves nothing, for or against."""
    mine, theirs = synthetic(name), synthetic(other)
    assert mine is not None
    assert theirs is not None
    for own, foreign in ((mine.ipv4, theirs.ipv4), (mine.ipv6, theirs.ipv6)):
        assert contradiction(OriginalDestination(str(own), port), name, port) is None
        refused = contradiction(OriginalDestination(str(foreign), port), name, port)
        assert (refused is None) is (own == foreign)
    for elsewhere in ("203.0.113.7", "2001:db8::7", "169.254.169.254"):
        assert contradiction(OriginalDestination(elsewhere, port), name, port) is None


@pytest.mark.parametrize(
    ("original", "host", "port"),
    [
        (OriginalDestination("203.0.113.7", 443), "203.0.113.8", 443),
        (OriginalDestination("2001:db8::7", 443), "203.0.113.8", 443),
        (OriginalDestination("203.0.113.7", 443), "api.openai.com", 80),
        (OriginalDestination("198.18.0.1", 443), "198.18.0.1", 443),
        (OriginalDestination("fd63:6f61:7463::1", 443), "fd63:6f61:7463::1", 443),
    ],
)
def test_what_contradicts_itself_is_an_alarm(original: OriginalDestination, host: str, port: int) -> None:
    """Another literal address, another port, an address of ours that is said to be a host."""
    refused = contradiction(original, host, port)
    assert isinstance(refused, Deny)
    assert (refused.reason, refused.alarm) == (Reason.AUTHORITY_MISMATCH, True)


def test_a_literal_host_is_the_address_itself() -> None:
    """And without an original destination there is nothing to contradict."""
    assert contradiction(OriginalDestination("203.0.113.7", 443), "203.0.113.7", 443) is None
    assert contradiction(None, "203.0.113.7", 443) is None
    assert ip_address("203.0.113.7") not in IPV4
