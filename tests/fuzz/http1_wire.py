"""HTTP/1 requests as attackers write them: right, but for one to three things that parsers disagree about."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

ENDS = (b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"\r\n ", b"\r\n\t", b"", b"\r\n\r\n", b"\x0b\r\n", b"\x85")
SPACES = (b"  ", b"\t", b"\x0b", b"\x0c", b"\xa0", b"\r", b"", b"\x00", b"\r\n")
METHODS = (b"PUT", b"HEAD", b"CONNECT", b"OPTIONS", b"get", b"G\x00T", b"PRI", b"TRACE", b"POST,GET", b"")
TARGETS = (
    *(
        b"//a.example/",
        b"*",
        b"http://a.example/x",
        b"HTTP://a.example",
        b"a.example:443",
        b"http:/a.example/",
    ),
    *(b"/a b", b"/a\tb", b"/%00", b"/\x80", b"", b"https://a.example", b"/a#b", b"http://u@a.example:80/"),
    *(b"http://a.example?x=/", b"http://b.example/", b"http://a.example:80", b"/a?b=c", b"/\r\nX-A: b"),
)
VERSIONS = (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/1.10", b"", b"HTTP/1.1 x")
HOSTS = (
    b"",
    b"Host: a.example\r\nHost: a.example\r\n",
    b"Host: b.example\r\n",
    b"Host: a.example, b.example\r\n",
)
NAMES = (
    *(b"Content-Length", b"Transfer-Encoding", b"X-A", b"Connection", b"Expect", b"Trailer", b"TE", b"Host"),
    *(
        b"content_length",
        b"Content-Length ",
        b" Host",
        b"X:A",
        b"",
        b"X\x00",
        b"Upgrade",
        b"Transfer-Encoding\t",
    ),
    *(b"X\x7f", b"\xe9", b"Authorization", b"Transfer-Encoding\x0b", b"\x00Content-Length"),
)
VALUES = (
    *(
        b"a.example",
        b"b.example",
        b"0",
        b"3",
        b"5",
        b"05",
        b"+5",
        b"5, 5",
        b"5 5",
        b"0x5",
        b"chunked",
        b"Chunked",
    ),
    *(
        b"chunked, chunked",
        b"gzip, chunked",
        b"identity",
        b"x\x00y",
        b"x\ry",
        b"x\r\n y",
        b"\x0bchunked",
        b"\x80",
    ),
    *(b"", b"close", b"keep-alive, x-a", b"100-continue", b"websocket", b"chunked\x0c", b"\xb2", b"9" * 17),
)
PADDING = (b"", b"\t", b"  ", b" \t ", b"\x0b", b"\xa0")
SIZES = (
    b"%X",
    b"0%x",
    b"000000000000%x",
    b"+%x",
    b"0x%x",
    b"-%x",
    b" %x",
    b"%x ",
    b"%x\t",
    b"0" * 20 + b"%x",
)
EXTENSIONS = (
    *(b";a", b";a=b", b';a="b;c"', b" ;a", b"; a = b", b";", b";a\rb", b";a\nb", b' ;a="\r\n"', b" ", b"\t"),
    *(b";\x00", b";;", b";a=", b";a;b=c", b"\x0b", b';a="\\""', b";\x80"),
)
LASTS = (b"00", b"0x0", b"-0", b"", b"0000000000000000000", b"0;a")
TRAILERS = (b"X-T: a\r\n", b"Content-Length: 3\r\n", b" x\r\n", b"\n", b"\r\r\n", b"X\r\n", b"X-T: a\n")
BEFORE = (b"\r\n", b"\n", b"\r\n\r\n", b" ", b"\x00", b"\r")
BODIES = (b"", b"abc", b"hello", b"GET / HTTP/1.1\r\n\r\n", b"0\r\n\r\n", b"\r\n")


class _Slips:
    """How often this request strays from the grammar, at most."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._left = draw(st.sampled_from([0, 0, 1, 1, 1, 2, 3]))

    def __call__(self, right: bytes, wrong: Sequence[bytes], odds: int = 12) -> bytes:
        if self._left and self._draw(st.sampled_from((False,) * odds + (True,))):
            self._left -= 1
            return self._draw(st.sampled_from(wrong))
        return right


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request, or what pretends to be one."""
    slip = _Slips(draw)
    method = draw(st.sampled_from([b"GET", b"POST", b"POST"]))
    target = draw(st.sampled_from([b"/", b"/a?b=c", b"/x"]))
    wire = slip(b"", BEFORE) + slip(method, METHODS) + slip(b" ", SPACES) + slip(target, TARGETS)
    wire += slip(b" ", SPACES) + slip(b"HTTP/1.1", VERSIONS) + slip(b"\r\n", ENDS)
    wire += slip(b"Host: a.example\r\n", HOSTS)
    kind = draw(st.sampled_from(["chunked", "chunked", "length", "none"]))
    body = draw(st.sampled_from(BODIES))
    if kind == "chunked":
        wire += _field(slip, b"Transfer-Encoding", b"chunked")
    elif kind == "length":
        wire += _field(slip, b"Content-Length", b"%d" % len(body))
    if slip(b"", (b"odd",), 3):
        wire += _field(slip, draw(st.sampled_from(NAMES)), draw(st.sampled_from(VALUES)))
    else:
        wire += _field(slip, b"X-A", b"b")
    wire += slip(b"\r\n", ENDS)
    if kind == "length":
        return wire + body
    return wire + _chunks(draw, slip) if kind == "chunked" else wire


def _field(slip: _Slips, name: bytes, value: bytes) -> bytes:
    written = slip(name, NAMES) + b":" + slip(b" ", PADDING) + slip(value, VALUES) + slip(b"", PADDING)
    return slip(written + slip(b"\r\n", ENDS), (b"", b"no colon\r\n", b" folded\r\n", written * 2))


def _chunks(draw: st.DrawFn, slip: _Slips) -> bytes:
    wire = b""
    for data in draw(st.lists(st.sampled_from(BODIES[1:]), max_size=3)):
        size = slip(b"%x", SIZES) % (len(data) + len(slip(b"", (b"x",))))
        wire += size + slip(b"", EXTENSIONS, 6) + slip(b"\r\n", ENDS) + data + slip(b"\r\n", ENDS)
    return (
        wire + slip(b"0", LASTS, 6) + slip(b"", EXTENSIONS, 6) + slip(b"\r\n", ENDS, 6)
    ) + slip(b"", TRAILERS, 4) + slip(b"\r\n", ENDS, 4)  # fmt: skip


@st.composite
def wires(draw: st.DrawFn) -> bytes:
    """One to three of them on one connection, with a few bytes changed now and then."""
    wire = b"".join(draw(st.lists(requests(), min_size=1, max_size=3)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, max(0, len(wire) - 1)))
        replaced = draw(st.sampled_from([0, 1, 1, 2]))
        wire = wire[:at] + draw(st.binary(max_size=2)) + wire[at + replaced :]
    return wire


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    """`wire` in pieces, at `places` modulo its length."""
    ends = sorted({place % (len(wire) + 1) for place in places} | {0, len(wire)})
    return [wire[start:end] for start, end in pairwise(ends)]
