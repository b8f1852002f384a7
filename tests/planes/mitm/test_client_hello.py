"""Hellos: whole or not, decided within bounds, the same for every way of cutting them."""

import ssl
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.proxy.layers.tls import get_client_hello, parse_client_hello
from mitmproxy.tls import ClientHello

from coatcheck.decision.host import HostRefused
from coatcheck.planes.mitm.client_hello import HELLO_BYTES, HELLO_RECORDS, is_whole, server_name


def real_hello(name: str = "api.openai.com") -> bytes:
    """What OpenSSL sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


HELLO = real_hello()
NO_HELLO = r"(Hello|handshake)"


def records(handshake: bytes, *sizes: int) -> bytes:
    """The same handshake bytes in records of these sizes, the last with the rest."""
    out = b""
    for size in (*sizes, len(handshake)):
        part, handshake = handshake[:size], handshake[size:]
        out += b"\x16\3\1" + len(part).to_bytes(2) + part if part else b""
    return out


@given(st.integers(0, len(HELLO)))
def test_a_hello_is_whole_with_its_last_byte(cut: int) -> None:
    """Not before."""
    assert is_whole(HELLO[:cut]) is (cut == len(HELLO))


@given(st.lists(st.integers(1, 200), max_size=HELLO_RECORDS - 1), st.integers(0, 40))
def test_records_and_what_follows_make_no_difference(sizes: list[int], more: int) -> None:
    """Some clients cut their hello, and some send the next message behind it."""
    data = records(HELLO[5:], *sizes)
    assert is_whole(data + bytes(more))
    assert get_client_hello(data + bytes(more)) == HELLO[5:]


@given(st.binary(max_size=64))
def test_whatever_comes_it_is_judged(data: bytes) -> None:
    """True only where mitmproxy's reader finds a hello, too; a ValueError stays one."""
    try:
        whole = is_whole(b"\x16\3\1" + data)
    except ValueError:
        for more in (b"\0", b"\xff" * 16):
            with pytest.raises(ValueError, match=NO_HELLO):
                is_whole(b"\x16\3\1" + data + more)
        return
    assert whole is (get_client_hello(b"\x16\3\1" + data) is not None)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\3\1\x3f\xff\1" + (HELLO_BYTES - 3).to_bytes(3),
        records(HELLO[5:], *[1] * HELLO_RECORDS),
        b"\x16\3\1\0\0",
        b"\x16\3\1\0\5\2",
        b"\x17",
        b"\x16\2",
        b"\x16\3\4",
    ],
)
def test_what_cannot_become_one_is_refused_at_once(data: bytes) -> None:
    """Too long, in crumbs, an empty record, another message, another protocol."""
    with pytest.raises(ValueError, match=NO_HELLO):
        is_whole(data)


def test_a_hello_that_comes_byte_by_byte_costs_little() -> None:
    """Its reader starts anew with each byte; the longest there is must not hold up the loop."""
    longest = b"\1" + (HELLO_BYTES - 4).to_bytes(3) + bytes(HELLO_BYTES - 4)
    data, so_far, whole = records(longest, *[1000] * (HELLO_RECORDS - 1)), bytearray(), False
    began = time.process_time()
    for byte in data:
        so_far.append(byte)
        whole = is_whole(so_far)
    assert whole
    assert time.process_time() - began < 5


def extension(*names: bytes, kind: int = 0) -> bytes:
    """A server_name extension (RFC 6066 3)."""
    entries = b"".join(bytes((kind,)) + len(name).to_bytes(2) + name for name in names)
    body = len(entries).to_bytes(2) + entries
    return b"\0\0" + len(body).to_bytes(2) + body


def hello(*extensions: bytes) -> ClientHello:
    """A small one with these extensions."""
    found = b"".join(extensions)
    start = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    body = start + (len(found).to_bytes(2) + found if found else b"")
    parsed = parse_client_hello(records(b"\1" + len(body).to_bytes(3) + body))
    assert parsed is not None
    return parsed


def test_a_hello_names_one_host_or_none() -> None:
    """In canonical form."""
    real = parse_client_hello(HELLO)
    assert real is not None
    assert server_name(real) == "api.openai.com"
    assert server_name(hello(extension(b"API.OpenAI.com"))) == "api.openai.com"
    assert server_name(hello()) is None
    assert server_name(hello(b"\0\x17\0\0")) is None


@pytest.mark.parametrize(
    "extensions",
    [
        (extension(b"evil.example"), extension(b"api.openai.com")),
        (extension(b"evil_\0.example"), extension(b"api.openai.com")),
        (extension(b"api.openai.com"), extension(b"api.openai.com")),
        (extension(b"evil.example", b"api.openai.com"), extension(b"api.openai.com")),
        (extension(b"evil.example", b"api.openai.com"),),
        (extension(b"api.openai.com", kind=1),),
        (extension(b"api.openai.com."),),
        (extension(b"api.openai.com:443"),),
        (extension(b"evil.example\0.openai.com"),),
        (extension("\uff41pi.openai.com".encode()),),
        (extension(b""),),
        (extension(),),
    ],
)
def test_a_hello_with_more_than_one_name_or_none_that_is_a_host_is_refused(
    extensions: tuple[bytes, ...],
) -> None:
    """mitmproxy takes the first name that it likes, wherever it stands."""
    with pytest.raises(HostRefused):
        server_name(hello(*extensions))
