"""Hosts have one reading, and everything with two is refused."""

import ipaddress
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coatcheck.decision.host import HostRefused, canonical_host, split_authority

GOOD = {
    "api.openai.com": "api.openai.com",
    "API.OpenAI.com": "api.openai.com",
    "localhost": "localhost",
    "xn--bcher-kva.example": "xn--bcher-kva.example",
    "r3---sn-abc.example.com": "r3---sn-abc.example.com",
    "1password.com": "1password.com",
    "10.0.0.1": "10.0.0.1",
    "::1": "::1",
    "[::1]": "::1",
    "2001:DB8:0:0:0::1": "2001:db8::1",
    "a" * 63 + ".example": "a" * 63 + ".example",
    ".".join(["a" * 62] * 4) + "b": ".".join(["a" * 62] * 4) + "b",
    "example.de": "example.de",
    "a.0xg1": "a.0xg1",
    "255.255.255.255": "255.255.255.255",
}

BAD = [
    "",
    ".",
    "..",
    "api.openai.com.",
    ".openai.com",
    "api..openai.com",
    "a" * 64 + ".example",
    ".".join(["a" * 60] * 5),
    "api_internal.example",
    "user@api.openai.com",
    "api.openai.com/evil",
    "api.openai.com:443",
    "evil\x00.openai.com",
    "evil\r\n.openai.com",
    "api openai.com",
    " api.openai.com",
    "api.openai.com\t",
    "api%2eopenai.com",
    "api.openai.com%00",
    "*.openai.com",
    "bücher.example",
    "api。openai.com",
    "api.openaⅰ.com",
    "xn--.example",
    "xn--a-ecp.ru-.example",
    "xn--zzzzzzzz99999.example",
    "-a.example",
    "a-.example",
    "127.1",
    "127.0.0.1.",
    "0x7f.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "0x",
    "2130706433",
    "010.0.0.1",
    "1.2.3.4.5",
    "256.0.0.1",
    "1.2.3.04",
    "example.123",
    "example.0x1f",
    "١٢٧.0.0.1",
    "[::1",
    "::1]",
    "[api.openai.com]",
    "[10.0.0.1]",
    "fe80::1%eth0",
    "[fe80::1%25eth0]",
    "::ffff:10.0.0.1",
    "[::ffff:a00:1]",
    "1::2::3",
    ":",
]


@pytest.mark.parametrize(("text", "canonical"), GOOD.items())
def test_a_plain_host_has_its_canonical_form(text: str, canonical: str) -> None:
    """Names fold to lower case, IPv6 literals are compressed, and nothing else changes."""
    assert canonical_host(text) == canonical


@pytest.mark.parametrize("text", BAD)
def test_an_odd_host_is_refused(text: str) -> None:
    """What some reader would take for another host is no host."""
    with pytest.raises(HostRefused):
        canonical_host(text)


@pytest.mark.parametrize("text", BAD)
def test_an_odd_host_is_refused_in_an_authority_too(text: str) -> None:
    """A port does not make an odd host acceptable."""
    with pytest.raises(HostRefused):
        split_authority(text + ":443", None)


def test_a_refusal_suggests_the_a_label_and_the_name_without_its_dot() -> None:
    """The writer of a policy learns what to write; the message itself repeats nothing."""
    with pytest.raises(HostRefused) as unicode_name:
        canonical_host("Bücher.example")
    assert unicode_name.value.instead == "xn--bcher-kva.example"
    assert "cher" not in str(unicode_name.value)
    with pytest.raises(HostRefused) as dotted:
        canonical_host("api.openai.com.")
    assert dotted.value.instead == "api.openai.com"
    with pytest.raises(HostRefused) as mapped:
        canonical_host("::ffff:10.0.0.1")
    assert mapped.value.instead == "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "instead"),
    [("a.", "a"), ("api..", "api"), ("..", ""), ("b\u00fc cher", ""), ("\u0661.example", "")],
)
def test_a_refusal_suggests_only_what_would_be_accepted(text: str, instead: str) -> None:
    """Nothing rather than another odd form; without a suggestion it is empty."""
    with pytest.raises(HostRefused) as refused:
        canonical_host(text)
    assert refused.value.instead == instead
    assert HostRefused("because").instead == "" and str(HostRefused("because")) == "because"


def test_the_longest_name_and_authority_are_accepted() -> None:
    """253 characters (RFC 1035 2.3.4), and a port of five digits behind them."""
    name = ".".join(["a" * 62] * 4) + "b"
    assert len(name) == 252
    longest = "a" + name
    assert canonical_host(longest) == longest
    assert split_authority(longest + ":65535", None) == (longest, 65535)
    for text in ("ab" + name, "ab" + name + ":1"):
        with pytest.raises(HostRefused, match="longer"):
            split_authority(text, 443)


HOSTISH = st.text(alphabet="abxX019.-:[]%@_\x00é。*/ ", max_size=24) | st.text(max_size=40)
NUMBERS = st.sampled_from(["0", "1", "127", "255", "256", "0x7f", "010", "08", "a", "0X1", ""])
ADDRESSISH = st.lists(NUMBERS, max_size=5).map(".".join)


@given(HOSTISH | ADDRESSISH | st.ip_addresses().map(str))
@example("1.0x1")
@example("a.0X1")
def test_canonical_host_is_idempotent_and_takes_no_hidden_address(text: str) -> None:
    """What it accepts is stable, and an address to the C library or to `ipaddress` only if canonical."""
    try:
        host = canonical_host(text)
    except HostRefused:
        return
    assert canonical_host(host) == host
    assert host == host.lower() and host.isascii() and len(host) <= 253 and not host.endswith(".")
    try:
        address = str(ipaddress.ip_address(host))
    except ValueError:
        with pytest.raises(OSError, match="illegal IP address"):
            socket.inet_aton(host)
    else:
        assert address == host


@given(st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z]([a-z0-9]{0,5}))*", fullmatch=True))
@example("xn--a")
def test_case_never_makes_a_difference(name: str) -> None:
    """DNS ignores case, so both spellings are one host, or neither is one."""

    def read(text: str) -> str | None:
        try:
            return canonical_host(text)
        except HostRefused:
            return None

    assert read(name) == read(name.upper())


def test_an_authority_is_a_host_and_a_port() -> None:
    """With a default where the protocol has one, and brackets for IPv6."""
    assert split_authority("API.openai.com", 443) == ("api.openai.com", 443)
    assert split_authority("api.openai.com:8443", 443) == ("api.openai.com", 8443)
    assert split_authority("[::1]:65535", None) == ("::1", 65535)
    assert split_authority("[::1]", 80) == ("::1", 80)
    assert split_authority("10.0.0.1:1", None) == ("10.0.0.1", 1)


@pytest.mark.parametrize(
    "text",
    [
        *("a", "[::1]", "a:", "a:0", "a:065", "a:65536", "a:+443", "a:-1", "a: 443", "a:443 ", "a:4_43"),
        *("a:٤٤٣", "a:443:443", "::1", "::1:443", "[::1]443", "[::1]:", "[::1", "[]:443", ":443"),
        *("u@a:443", "a:443/", "a:443\x00", "a:99999999999999999999", "a" * 300 + ":443"),
    ],
)
def test_an_odd_authority_is_refused(text: str) -> None:
    """Ports are plain decimals from 1 to 65535, and CONNECT must name one."""
    with pytest.raises(HostRefused):
        split_authority(text, None)
