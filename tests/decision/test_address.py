"""Which addresses may be dialled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.address import parse_networks, screen

REFUSED = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
    "168.63.129.16", "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "192.0.0.192", "198.18.0.1", "224.0.0.1", "239.255.255.255", "255.255.255.255", "240.0.0.1",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1",
    "2600::5efe:808:808", "2600::200:5efe:808:808",
    "2002:7f00:1::", "2001:0:1::1", "2001:db8::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0",
    "fec0::1", "ff02::1", "100::1", "::ffff:0:127.0.0.1", "3fff::1",
    "", "localhost", "127.1", "0x7f000001", "2130706433", "1.2.3.4.5",
]  # fmt: skip


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_inside_the_house_are_refused(address: str) -> None:
    """Private, local, embedded and malformed addresses are never dialled."""
    assert screen(address) is not None


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111"])
def test_public_addresses_are_dialled(address: str) -> None:
    """The screen does not over-block its neighbours."""
    assert screen(address) is None


def test_an_allowlist_opens_only_its_ranges() -> None:
    """An operator's on-premises range is dialled; its neighbours are not."""
    allowed = parse_networks(("10.20.0.0/16", "fd12:3456::/32"))
    assert screen("10.20.1.1", allowed) is None
    assert screen("fd12:3456::1", allowed) is None
    assert screen("10.21.0.1", allowed) is not None
    assert screen("::ffff:10.20.1.1", allowed) is not None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("169.254.169.254", "169.254.0.0/16"),
        ("100.100.100.200", "100.64.0.0/10"),
        ("64:ff9b::a9fe:a9fe", "64:ff9b::/96"),
        ("fd00:ec2::254", "fc00::/7"),
        ("fd20:ce::254", "fc00::/7"),
        ("fd00:42::42", "fd00::/8"),
        ("fd00:c1::a9fe:a9fe", "fd00::/8"),
        ("fd00:100::100:200", "fd00::/8"),
        ("fd00:a9fe:a9fe::1", "fd00::/8"),
        ("169.254.42.42", "169.254.0.0/16"),
        ("169.254.0.23", "169.254.0.0/16"),
        ("2002:a9fe:a9fe::", "::/0"),
    ],
)
def test_metadata_services_stay_closed_under_any_allowlist(address: str, network: str) -> None:
    """A careless allowlist never opens a metadata service."""
    assert screen(address, parse_networks((network,))) == "cloud metadata service"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::ffff:127.0.0.1", "::ffff:8.8.8.8"])
def test_an_allowlist_opens_no_address_that_means_another(address: str) -> None:
    """`0.0.0.0` and `::` are dialled as loopback, where our own listeners are known by other addresses."""
    everything = parse_networks(("0.0.0.0/0", "::/0"))
    assert screen("127.0.0.1", everything) is None
    assert screen(address, everything) is not None


def test_an_opened_nat64_prefix_still_screens_what_it_embeds() -> None:
    """NAT64 reaches public IPv4 when opened, and private IPv4 never."""
    allowed = parse_networks(("64:ff9b::/96",))
    assert screen("64:ff9b::808:808", allowed) is None
    assert screen("64:ff9b::a00:1", allowed) is not None


@given(st.ip_addresses())
def test_nothing_the_standard_library_calls_local_is_dialled(ip: object) -> None:
    """Against the standard library's own tables: our answer is never laxer."""
    from ipaddress import ip_address

    parsed = ip_address(str(ip))
    if not parsed.is_global or parsed.is_multicast:
        assert screen(str(parsed)) is not None


def test_an_opened_translation_prefix_is_judged_by_what_it_translates_to() -> None:
    """NAT64 and a private range, both opened, lead there; the prefix alone does not."""
    nat64 = parse_networks(("64:ff9b::/96",))
    assert screen("64:ff9b::a00:5", (*nat64, *parse_networks(("10.0.0.0/8",)))) is None
    assert screen("64:ff9b::a00:5", nat64) == "private (RFC 1918)"
    assert screen("64:ff9b::808:808", nat64) is None
    assert (
        screen("2002:a00:5::1", parse_networks(("2002::/16",))) is None
    )  # no translation: a range like others


@pytest.mark.parametrize("address", ["2606:4700::a9fe:a9fe", "2a00::a83f:8110"])
def test_the_last_bytes_of_an_ordinary_address_are_no_ipv4_address(address: str) -> None:
    """Only the schemes that carry one do: 169.254.169.254 in the end of a public address is chance."""
    assert screen(address) is None


def test_a_range_with_bits_behind_its_prefix_is_a_mistake() -> None:
    """10.1.2.3/8 may mean one address or sixteen million."""
    with pytest.raises(ValueError, match="host bits"):
        parse_networks(("10.1.2.3/8",))


def test_what_isatap_carries_is_looked_at() -> None:
    """A range that was opened may hold such addresses; what is inside counts, too."""
    opened = parse_networks(("2600::/32",))
    assert screen("2600::1", opened) is None
    assert screen("2600::5efe:10.0.0.5", opened) == "private (RFC 1918)"
    assert screen("2600::200:5efe:169.254.169.254", opened) == "cloud metadata service"
    assert screen("2600::5efe:8.8.8.8", opened) is None
    assert screen("2600::1:5eff:10.0.0.5", opened) is None
