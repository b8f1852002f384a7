"""The core's edits as mitmproxy's request has them."""

import pytest
from mitmproxy import http

from coatcheck.decision.message import Edits
from coatcheck.planes.mitm.translate import apply_edits


@pytest.mark.parametrize("authority", [b"api.example.com:443", b""])
def test_an_edited_host_is_the_only_one_that_is_sent(authority: bytes) -> None:
    """An HTTP/2 upstream reads :authority, an HTTP/1 upstream Host: neither sees what the client wrote."""
    headers = http.Headers([] if authority else [(b"Host", b"api.example.com:443")])
    request = http.Request(
        "h", 443, b"GET", b"https", authority, b"/", b"HTTP/2.0", headers, b"", None, 0.0, None
    )
    apply_edits(request, Edits((("host", "api.example.com"),)))
    assert request.data.authority == (b"api.example.com" if authority else b"")
    assert request.headers.get_all("host") == ["api.example.com"]
