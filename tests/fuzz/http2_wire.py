"""HTTP/2 connections as attackers write them: right, but for a few frames, fields and flags that are not."""

import hpack
from hypothesis import strategies as st

HOST = b"api.github.com"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
RIGHT = ((b":method", b"GET"), (b":scheme", b"https"), (b":authority", HOST), (b":path", b"/"))
FIELDS = (
    *(
        (b":method", b"POST"),
        (b":method", b"CONNECT"),
        (b":method", b"GET / HTTP/1.1\r\nX: y"),
        (b":x", b"y"),
    ),
    *((b":path", b"/a b"), (b":path", b""), (b":path", b"/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")),
    *(
        (b":path", b"//x"),
        (b":authority", b"evil.example"),
        (b":authority", b"u@" + HOST),
        (b":status", b"200"),
    ),
    *((b"host", b"evil.example"), (b"host", HOST), (b"content-length", b"5"), (b"content-length", b"0")),
    *((b"transfer-encoding", b"chunked"), (b"connection", b"close"), (b"te", b"gzip"), (b"X-Upper", b"y")),
    *((b"x", b"a\r\nb: c"), (b"x", b"a\0"), (b"x y", b"z"), (b"", b"y"), (b"upgrade", b"websocket")),
    *((b":protocol", b"websocket"), (b"cookie", b"a=b"), (b"expect", b"100-continue"), (b"x\r\ny", b"z")),
    *((b":scheme", b"http"), (b"x", b"\x80")),
)


_RARELY = st.sampled_from((False,) * 6 + (True,))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind & 255, flags)) + stream.to_bytes(4) + payload


@st.composite
def connections(draw: st.DrawFn) -> bytes:
    """A preface, settings, and one to five requests with what comes between them."""
    encoder = hpack.Encoder()
    wire = draw(st.sampled_from([PREFACE] * 9 + [PREFACE[:10], b""])) + frame(SETTINGS, 0, 0, b"")
    stream = 1
    for _ in range(draw(st.integers(1, 5))):
        if draw(_RARELY):
            wire += _other(draw, stream)
        wire += _request(draw, encoder, stream)
        stream += draw(st.sampled_from([2, 2, 2, 2, 0, 1]))
    return wire


def _request(draw: st.DrawFn, encoder: hpack.Encoder, stream: int) -> bytes:
    fields = list(RIGHT)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        name, value = draw(st.sampled_from(FIELDS))
        what = draw(st.sampled_from(["put", "put", "add", "first"]))
        if what == "put":
            fields = [field for field in fields if field[0] != name]
        fields.insert(0 if what == "first" else len(fields), (name, value))
    block = encoder.encode(fields)
    body = draw(
        st.sampled_from([b"", b"", b"hello", b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"0\r\n\r\n"])
    )
    ends = 0 if body or draw(_RARELY) else 1
    if draw(_RARELY):
        cut = draw(st.integers(0, len(block)))
        wire = frame(HEADERS, ends, stream, block[:cut])
        if draw(_RARELY):
            wire += _other(draw, stream)
        wire += frame(CONTINUATION, 4, stream, block[cut:])
    else:
        wire = frame(HEADERS, ends | 4, stream, block)
    if body:
        last = draw(st.sampled_from([1, 1, 1, 0]))
        wire += frame(DATA, last, stream, body)
        if not last and draw(st.booleans()):
            trailers = draw(st.sampled_from([b"x-t", b"content-length", b":path", b"transfer-encoding"]))
            wire += frame(HEADERS, 5, stream, encoder.encode([(trailers, b"3")]))
    return wire


def _other(draw: st.DrawFn, stream: int) -> bytes:
    kind = draw(st.sampled_from([*range(10), 10, 255]))
    of = draw(st.sampled_from([0, stream, stream + 2, 2, 2**31 - 1]))
    payload = draw(
        st.sampled_from([b"", b"\0\0\0\0", b"\0\0\0\1", b"\0" * 8, b"\x7f\xff\xff\xff", b"\0\4\0\0\0\0"])
    )
    return frame(kind, draw(st.sampled_from([0, 0, 1, 4, 8, 0x20, 255])), of, payload)
