"""I7 for names: what we take for a host, five other readers take for the same host, or it is refused."""

import ipaddress
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
from hypothesis import event, example, given
from hypothesis import strategies as st
from mitmproxy.net.http import url as mitm_url
from urllib3.util import parse_url

from coatcheck.decision.host import HostRefused, canonical_host, split_authority
from tests.fuzz.budget import budget

LABELS = (
    *("a", "api", "example", "com", "xn--bcher-kva", "xn--a", "-a", "a-", "0x7f", "0X1", "1", "01", "1e3"),
    *("256", "255", "0", "", "ſ", "ä", "%61", "a_b", "A" * 64, "evil\0", "１２７", "0x", "٣"),
)
_labels = st.sampled_from(LABELS) | st.from_regex(r"[a-z0-9-]{1,5}", fullmatch=True)
_names = st.lists(_labels, min_size=1, max_size=5).map(".".join)
_v6 = st.one_of(
    st.ip_addresses(v=6).map(str),
    st.sampled_from(
        ["::ffff:127.0.0.1", "::1%eth0", "::127.1", "0::0::0", "fe80::1%25lo", "::FFFF:1", "1::"]
    ),
)
_hosts = st.one_of(_names, st.ip_addresses(v=4).map(str), _v6, _v6.map(lambda text: f"[{text}]"))
_ports = st.one_of(
    st.sampled_from(["", ":443", ":0443", ":+443", ":65536", ":0", ":", ":4_3", ": 443", ":443:1", ":٤"]),
    st.integers(1, 65535).map(lambda port: f":{port}"),
)
AROUND = (".", "u@", " ", "\t", "#", "?", "/", "\\", "@", ",a", "\n", "u:p@", "%", "[", "]")
_around = st.just("") | st.just("") | st.just("") | st.sampled_from(("", *AROUND))


@st.composite
def authorities(draw: st.DrawFn) -> str:
    """What stands in Host, CONNECT and `:authority`, with what hides another host in it."""
    text = draw(_around) + draw(_hosts) + draw(_around) + draw(_ports) + draw(_around)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1]))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.characters(max_codepoint=0x2FF)) + text[at:]
    return text


type Reader = Callable[[str], tuple[str | None, int | None]]


def _urllib(text: str) -> tuple[str | None, int | None]:
    parts = urlsplit(f"https://{text}/")
    return parts.hostname, parts.port


def _httpx(text: str) -> tuple[str | None, int | None]:
    found = httpx.URL(f"https://{text}/")
    return found.raw_host.decode(), found.port


def _urllib3(text: str) -> tuple[str | None, int | None]:
    found = parse_url(f"https://{text}/")
    return found.host, found.port


def _mitmproxy(text: str) -> tuple[str | None, int | None]:
    return mitm_url.parse_authority(text, check=True)


READERS: tuple[Reader, ...] = (_urllib, _httpx, _urllib3, _mitmproxy)


@given(authorities())
@example("EXAMPLE.com:443")
@example("[::1]:8443")
@budget(300)
def test_five_readers_read_one_host_and_port(text: str) -> None:
    """What they make of a name that we refuse does not matter."""
    try:
        ours = split_authority(text, 443)
    except HostRefused:
        return
    event("accepted")
    for reader in READERS:
        host, port = reader(text)
        assert host is not None, reader
        bare = host.removeprefix("[").removesuffix("]").lower()
        if ":" in bare:
            bare = ipaddress.IPv6Address(bare).compressed
        assert (bare, port or 443) == ours, reader


@given(authorities())
@budget(300)
def test_no_resolver_takes_an_accepted_name_for_another_address(text: str) -> None:
    """inet_aton and getaddrinfo read `127.1` and `0x7f.1`: a name that we accept is none to them."""
    try:
        host = canonical_host(text)
    except HostRefused:
        return
    assert canonical_host(host) == canonical_host(host.upper()) == host
    try:
        (found, *_) = socket.getaddrinfo(host, 443, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        return
    assert ipaddress.ip_address(found[4][0]) == ipaddress.ip_address(host)
    event("address")
