"""Hellos: whole or not, decided within bounds, the same for every way of cutting them."""

import ssl
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.proxy.layers.tls import get_client_hello

from coatcheck.planes.client_hello import HELLO_BYTES, HELLO_RECORDS, is_whole


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
