"""The two ways to read: with places, by numpy, and the quick one for small texts, which tells no places."""

import re
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from coatcheck.decision import scrub
from coatcheck.decision.encodings import RUN
from coatcheck.decision.readings import readings, texts_of
from coatcheck.decision.scrub import Patterns, Scrubber, Sought
from tests.decision.test_scrub import SECRETS, innocent
from tests.writers import WRITERS

pieces = st.one_of(
    innocent,
    st.binary(max_size=40),
    st.text("0123456789abcdefABCDEF xX:-,\n", max_size=60).map(str.encode),
    st.text("0123456789, \n", max_size=60).map(str.encode),
    st.text("QUFBc2stcHJvai0+/=-_", max_size=60).map(str.encode),
    st.text('\\%&=#;{}nrt"/u0412356789abcdefx\r\n\0', max_size=40).map(str.encode),
    st.sampled_from(
        [
            b"\\n",
            b"\\\\",
            b"%41",
            b"%5c",
            b"%00",
            b"=31",
            b"=\r\n",
            b"&amp;",
            b"&lt",
            b"&#65;",
            b"\\u0041",
            b"%u0041",
            b"0x41, ",
            b"00xX",
            b"\n00000000  41 ",
            b"\0",
            b"<b>",
            b"</\xff>",
            b"\x1b[1m",
        ]
    ),
)
texts = st.lists(pieces, max_size=12).map(b"".join)


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """Up to three writers in each other, of a secret, a part of one, or anything, between other texts."""
    text = draw(st.one_of(st.sampled_from(SECRETS).map(str.encode), texts))
    first = draw(st.integers(0, len(text)))
    text = text[first : first + draw(st.integers(0, 60))]
    for name in draw(st.lists(st.sampled_from(sorted(WRITERS)), max_size=3)):
        text = WRITERS[name](text)[:1200]
    return draw(texts) + text + draw(texts)


@given(st.one_of(texts, written()), st.sampled_from([b"", b"\\", b"%", b"&", b"\\%&"]), st.booleans())
@example(b"max-age=31536000; includeSubDomains\n0f8fad5b-d9cb-469f-a165-70867728950e\n0", b"", True)
@settings(deadline=None, max_examples=400)
def test_the_quick_way_says_all_that_readings_say(data: bytes, literal: bytes, in_ascii: bool) -> None:
    """Every text in which a run could be, or that it cannot tell."""
    quick = texts_of(data, literal, in_ascii=in_ascii)
    if quick is not None:
        all_of_them = {reading.data for reading in readings(data, literal, in_ascii=in_ascii)}
        row = re.compile(rb"[%s]{%d}" % (b"\0-\x7f" if in_ascii else b"\0-\xff", RUN))
        assert {text for text in all_of_them if row.search(text)} <= set(quick)


@given(
    st.lists(written(), max_size=6), st.sampled_from([*SECRETS, "秘密の鍵はここにあります"]), st.booleans()
)
@settings(deadline=None, max_examples=200)
def test_what_leaves_is_the_same_without_the_quick_way(
    chunks: list[bytes], secret: str, messages: bool
) -> None:
    """Bytes and runs of a stream are those of a search in every reading."""
    outputs = []
    for quick in (texts_of, lambda *_, **__: None):
        with patch.object(scrub, "texts_of", quick):
            scrubber = Scrubber(Patterns.of([Sought("it", secret)]), in_messages=messages)
            sent = [*map(scrubber.feed, chunks), scrubber.finish()]
            outputs.append((sent, scrubber.hits, scrubber.take_runs()))
    assert outputs[0] == outputs[1]


def test_usual_texts_are_read_in_the_quick_way() -> None:
    """Values of headers, an event, and a JSON body. Otherwise each would cost as many steps of numpy as a
    large body."""
    usual = (
        (
            b'Sun, 22 Nov 2026 21:19:28 GMT\nnginx\nW/"33a64df551425fcc55e4d42a148795d9"\nmax-age=31536000; '
            b"includeSubDomains\n0f8fad5b-d9cb-469f-a165-70867728950e\n0\nno-cache, no-store, must-revalidate"
        ),
        b'data: {"id":"chatcmpl-AbC123dEf456GhI789jKl","delta":{"content":"say \\"it\\"\\n"}}\n\n',
        b'{"url": "https://api.example.com/?a=b&c=%20", "id": 1764450123456}',
    )
    assert [texts_of(text, in_ascii=True) is not None for text in usual] == [True] * 3
