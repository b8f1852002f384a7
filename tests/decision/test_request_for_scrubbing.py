"""What a request loses so that its answer can be scrubbed."""

import pytest

from coatcheck.decision.message import RequestHead
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
    edits = plan_request_for_scrubbing(
        RequestHead("GET", "/", (("accept-encoding", offered),)), injected=True
    )
    assert edits.set_headers == (("accept-encoding", sent),)


def test_every_accept_encoding_counts() -> None:
    """Several headers are one list (RFC 9110 5.3)."""
    headers = (("accept-encoding", "gzip"), ("accept-encoding", "br"))
    edits = plan_request_for_scrubbing(RequestHead("GET", "/", headers), injected=False)
    assert edits.set_headers == (("accept-encoding", "gzip, br"),)


def test_an_injected_request_asks_for_no_range() -> None:
    """Range and If-Range go where a credential goes; elsewhere they stay and codings go."""
    headers = (
        ("range", "bytes=5-"),
        ("if-range", '"v1"'),
        ("te", "trailers"),
        ("grpc-accept-encoding", "gzip"),
        ("accept-charset", "utf-16"),
        ("accept-encoding", "gzip"),
        ("a-im", "vcdiff"),
    )
    edits = plan_request_for_scrubbing(RequestHead("GET", "/", headers), injected=True)
    always = ("a-im", "accept-charset", "grpc-accept-encoding")
    assert edits.remove_headers == (*always, "if-range", "range", "te")
    assert edits.set_headers == (("accept-encoding", "gzip"),)
    edits = plan_request_for_scrubbing(RequestHead("GET", "/", headers, "HTTP/2.0"), injected=False)
    assert edits.remove_headers == always
    assert edits.set_headers == (("accept-encoding", "identity"),)
    assert plan_request_for_scrubbing(RequestHead("GET", "/", ()), injected=True).set_headers == ()


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
        assert plan_request_for_scrubbing(head, injected=True).remove_headers == gone
