"""What a request loses so that its answer can be searched."""

import pytest

from coatcheck.decision.message import Headers, RequestHead
from coatcheck.decision.response import plan_request_for_scrubbing


@pytest.mark.parametrize(
    ("offered", "sent"),
    [
        ("gzip, deflate, br, zstd", "gzip, deflate, br, zstd"),
        ("br;q=1.0, gzip; q=0.8, *;q=0.1", "br;q=1.0, gzip; q=0.8"),
        ("compress, dcb, GZIP", "gzip"),
        ("gzip;q=0, br;q=0.000, zstd;q=0.001", "zstd;q=0.001"),
        ("gzip;level=9", "identity"),
        ("*", "identity"),
        ("\x0cgzip", "identity"),
        ("", "identity"),
    ],
)
def test_accept_encoding_is_narrowed_to_what_can_be_undone(offered: str, sent: str) -> None:
    """In the client's order; otherwise upstreams would answer what must be refused."""
    head = RequestHead("GET", "/", (("accept-encoding", offered),))
    for secrets, compression in ((True, True), (False, False), (False, True)):
        edits = plan_request_for_scrubbing(head, secrets=secrets, compression=compression)
        assert edits.set_headers == (("accept-encoding", sent),)


def test_every_accept_encoding_counts() -> None:
    """Several headers are one list (RFC 9110 5.3)."""
    headers = (("accept-encoding", "gzip"), ("accept-encoding", "br"))
    edits = plan_request_for_scrubbing(RequestHead("GET", "/", headers), secrets=False, compression=False)
    assert edits.set_headers == (("accept-encoding", "gzip, br"),)


@pytest.mark.parametrize("headers", [(), (("accept-encoding", "gzip"),), (("accept-encoding", "*"),)])
def test_what_could_show_a_secret_is_asked_for_uncompressed(headers: Headers) -> None:
    """How well a page compresses tells what is in it, so no coding is left to the upstream's choice."""
    head = RequestHead("GET", "/", headers)
    edits = plan_request_for_scrubbing(head, secrets=True, compression=False)
    assert edits.set_headers == (("accept-encoding", "identity"),)


def test_what_could_show_a_secret_is_asked_for_whole() -> None:
    """Range and If-Range go where there are secrets; elsewhere they stay and codings go."""
    headers = (
        ("range", "bytes=5-"),
        ("if-range", '"v1"'),
        ("te", "trailers"),
        ("grpc-accept-encoding", "gzip"),
        ("accept-charset", "utf-16"),
        ("accept-encoding", "gzip"),
        ("a-im", "vcdiff"),
    )
    edits = plan_request_for_scrubbing(RequestHead("GET", "/", headers), secrets=True, compression=True)
    always = ("a-im", "accept-charset", "grpc-accept-encoding")
    assert edits.remove_headers == (*always, "if-range", "range", "te")
    assert edits.set_headers == (("accept-encoding", "gzip"),)
    head = RequestHead("GET", "/", headers, "HTTP/2.0")
    edits = plan_request_for_scrubbing(head, secrets=False, compression=True)
    assert edits.remove_headers == always
    assert edits.set_headers == (("accept-encoding", "identity"),)
    free = plan_request_for_scrubbing(RequestHead("GET", "/", ()), secrets=False, compression=False)
    assert free.set_headers == ()


def test_te_stays_where_it_asks_for_what_can_be_sent_on() -> None:
    """gRPC's `trailers`, in HTTP/2."""
    for value, version, gone in (
        ("trailers", "HTTP/2.0", ()),
        ("Trailers", "HTTP/2", ()),
        ("trailers", "HTTP/1.1", ("te",)),
        ("gzip", "HTTP/2.0", ("te",)),
        ("trailers, deflate;q=0.5", "HTTP/2.0", ("te",)),
    ):
        head = RequestHead("GET", "/", (("te", value),), version)
        edits = plan_request_for_scrubbing(head, secrets=True, compression=False)
        assert edits.remove_headers == gone
