"""Answers of an upstream that lies: SECRET stands for the secret that it was sent."""

import gzip
import zlib
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st

STATUSES = (
    *(b"200 OK", b"200 OK", b"200 OK", b"206 Partial", b"204 No Content", b"304 Not Modified", b"302 Found"),
    *(
        b"401 SECRET",
        b"500 x",
        b"101 Switching Protocols",
        b"100 Continue",
        b"103 Early Hints",
        b"999 x",
        b"200",
    ),
    *(b"+200 x", b"2_00 x", b"20 x", b"0200 x", b"600 x", b"099 x"),
)
HEADERS = (
    *(b"Location: https://evil.example/?SECRET", b"X-Echo: SECRET", b"Set-Cookie: a=SECRET", b"SECRET: x"),
    *(b"Content-Encoding: gzip", b"Content-Encoding: br, gzip", b"Content-Encoding: x", b"X-A: \x00SECRET"),
    *(b"Connection: close", b"Connection: upgrade", b"Upgrade: websocket", b"Trailer: X-T", b": x"),
    *(b"Content-Range: bytes 0-3/9", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity"),
    *(b" folded SECRET", b"no colon SECRET", b"Content-Length: 3", b"Content-Length: 3, 3"),
    *(b"Content-Length: +3", b"Link: </a?k=SECRET>; rel=x", b'WWW-Authenticate: Basic realm="SECRET"'),
    *(b'Alt-Svc: h2=":443"', b"X-A: a\rb: SECRET"),
)
PIECES = (
    b"SECRET",
    b"data: SECRET\n\n",
    b"x" * 50,
    b"\r\n",
    b"0\r\n\r\n",
    b'{"a":"SECRET"}',
    b"SEC",
    b"RET",
    b"",
)


BEFORE = (
    b"",
    b"",
    b"",
    b"HTTP/1.1 103 SECRET\r\nX: SECRET\r\n\r\n",
    b"HTTP/1.1 100 SECRET\r\n\r\n",
    b"SECRET\r\n",
)
VERSIONS = (b"HTTP/1.1 ", b"HTTP/1.1 ", b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/2.0 ", b"ICY ")
ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\n")
LAST_CHUNKS = (
    b"0\r\n\r\n",
    b"0\r\n\r\n",
    b"0\r\nX-T: SECRET\r\n\r\n",
    b"",
    b"0\r\n",
    b"zz\r\n",
    b"0;SECRET\r\n\r\n",
)
AFTER = (b"", b"", b"SECRET", b"HTTP/1.1 200 OK\r\n\r\nSECRET")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, and what follows it."""

    before: bytes
    status: bytes
    lines: tuple[bytes, ...]
    pieces: tuple[bytes, ...]
    coding: str
    framing: str
    """`length`, `chunked` or `end`."""
    off: int
    """How far its Content-Length is from the truth."""
    cuts: tuple[int, ...]
    last: bytes
    after: bytes

    def wire(self, secret: bytes) -> bytes:
        body = b"".join(self.pieces).replace(b"SECRET", secret)
        if self.coding:
            body = gzip.compress(body) if self.coding == "gzip" else zlib.compress(body)
        lines = list(self.lines)
        if self.coding:
            lines.append(b"Content-Encoding: " + self.coding.encode())
        if self.framing == "length":
            lines.append(b"Content-Length: %d" % max(0, len(body) + self.off))
        elif self.framing == "chunked":
            lines.append(b"Transfer-Encoding: chunked")
            body = self._chunks(body) + self.last
        head = self.before + self.status + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
        return head.replace(b"SECRET", secret) + body + self.after.replace(b"SECRET", secret)

    def _chunks(self, body: bytes) -> bytes:
        ends = sorted({cut % (len(body) + 1) for cut in self.cuts} | {0, len(body)})
        return b"".join(b"%x\r\n%s\r\n" % (end - start, body[start:end]) for start, end in pairwise(ends))


answers = st.builds(
    Answer,
    st.sampled_from(BEFORE),
    st.builds(lambda *parts: b"".join(parts), *map(st.sampled_from, (VERSIONS, STATUSES, ENDS))),
    st.lists(st.sampled_from(HEADERS), max_size=2).map(tuple),
    st.lists(st.sampled_from(PIECES), max_size=5).map(tuple),
    st.sampled_from(["", "", "gzip", "deflate"]),
    st.sampled_from(["length", "chunked", "end"]),
    st.sampled_from([0, 0, 0, 3, -3]),
    st.lists(st.integers(0, 500), max_size=3).map(tuple),
    st.sampled_from(LAST_CHUNKS),
    st.sampled_from(AFTER),
)
