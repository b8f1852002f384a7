"""The scrubber: no run of a secret gets out, wherever it is cut, and nothing waits or is masked
needlessly."""

import base64
import gc
import json
import pickle
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from urllib.parse import quote, unquote, unquote_plus

import httpx
import pytest
import requests
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from yarl import URL

from coatcheck.decision.encodings import RUN
from coatcheck.decision.scrub import (
    CONTEXT,
    HELD,
    MIN_SECRET_BYTES,
    MOST_RUNS,
    Patterns,
    Run,
    Scrubber,
    SecretTooShort,
    Sought,
    scrub_bytes,
    scrub_text,
)
from tests.decision.cost import LINEAR, growth
from tests.known_secrets import known_secret
from tests.writers import ENCODINGS, ESCAPES, WRITERS

KEY = "sk-proj-0123456789abcdefABCDEF"
ODD = "p'a\"ss<word>&0123456789=/+%\\~"
SECRETS = (KEY, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE+=", 'p<a>s&s "w\\r*d" =1+1/2-x', ODD)
innocent = st.one_of(
    st.text(" \n.,:{}\"'abc", max_size=30).map(str.encode), st.binary(max_size=30), st.just(b"data: x\n\n")
)


def run(patterns: Patterns, chunks: list[bytes], *, messages: bool = False) -> tuple[bytes, tuple[Run, ...]]:
    scrubber = Scrubber(patterns, in_messages=messages)
    out = b"".join([*map(scrubber.feed, chunks), scrubber.finish()])
    return out, scrubber.take_runs()


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(at)]


def masked_runs(secret: bytes, data: bytes) -> bytes:
    """The definition for text without escapes, written naively: each character in a run of the secret."""
    out = bytearray(data)
    for at in range(len(data) - RUN + 1):
        if data[at : at + RUN] in secret:
            out[at : at + RUN] = b"*" * RUN
    return bytes(out)


@given(
    st.lists(st.one_of(st.sampled_from(range(30)), st.just(-1)), max_size=8),
    st.lists(st.integers(0, 40), max_size=8),
    st.lists(st.integers(0, 1000), max_size=12),
)
def test_any_split_gives_the_output_of_the_naive_definition(
    starts: list[int], lengths: list[int], cuts: list[int]
) -> None:
    """Output and runs depend on the stream only, whatever the chunks: parts of a secret, of every length."""
    secret = b"Zx0Yw1Vu2Ts3Rq4Po5Nm6Lk7Ji8Hg9"
    data = b"".join(
        b" ; " if start < 0 else secret[start : start + length] + b";"
        for start, length in zip(starts, lengths, strict=False)
    )
    patterns = Patterns.of([secret])
    out, runs = run(patterns, split(data, cuts))
    assert out == masked_runs(secret, data)
    assert run(patterns, [bytes([byte]) for byte in data])[0] == out
    assert all(one.length >= RUN for one in runs)


@given(st.data(), st.sampled_from(SECRETS), st.lists(st.integers(0, 5000), max_size=12))
@settings(deadline=None)
def test_no_writer_gets_a_secret_through_however_the_stream_is_cut(
    data: st.DataObject, secret: str, cuts: list[int]
) -> None:
    """Escapes and encodings in each other, up to three, between innocent text."""
    layers = data.draw(st.lists(st.sampled_from(sorted(WRITERS)), max_size=2))
    layers += [data.draw(st.sampled_from(sorted(ESCAPES)))]
    for once in ("css", "quoted-printable"):  # nobody writes those in themselves, and they are undone once
        assume(sum(name.startswith(once) for name in layers) < 2)
    written = secret.encode()
    for name in layers:
        written = WRITERS[name](written)
    before, after = data.draw(innocent), data.draw(innocent)
    body = before + b'\n{"a": "' + written + b'"}\n' + after
    out, runs = run(Patterns.of([Sought("it", secret)]), split(body, cuts))
    assert len(out) == len(body)
    assert {one.secret for one in runs} == {"it"}
    assert not Patterns.of([secret]).find(out)


@given(st.lists(innocent, max_size=12).map(b"".join), st.lists(st.integers(0, 1000), max_size=6))
def test_what_holds_no_secret_stays_as_it_is(data: bytes, cuts: list[int]) -> None:
    """Whatever it looks like."""
    assert run(Patterns.of([known_secret("in nothing")]), split(data, cuts)) == (data, ())


@given(
    st.integers(1, RUN - 1), st.integers(0, 20), st.sampled_from(["", "\n", "\0\0\0\0\x0e\n\x0c", "\r\n\r\n"])
)
def test_messages_do_not_cut_a_secret_in_pieces(size: int, first: int, between: str) -> None:
    """Each piece is too short to be known alone, and what is between them is no text: at most eleven
    characters
    are seen in a row, the rest is masked."""
    secret = KEY.removeprefix("sk-proj-")
    scrubber = Scrubber(Patterns.of([KEY]))
    pieces = [secret[:first], *(secret[at : at + size] for at in range(first, len(secret), size))]
    out = b""
    for piece in filter(None, pieces):
        out += scrubber.feed(between.encode() + piece.encode()) + scrubber.flush()
    out = (out + scrubber.finish()).translate(None, bytes(range(0x21)))
    assert out.rstrip(b"*") in secret[: RUN - 1].encode() or first >= RUN
    assert [one.length for one in scrubber.take_runs()] == [len(secret)]


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from(["", "\n", "\0", "\r\n"]), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.sampled_from(["plain", "base64", "hex"]), max_size=4),
)
@settings(deadline=None)
def test_an_adversary_who_chooses_the_cuts_sees_eleven_characters(
    cuts: list[tuple[int, str, bool]], echoes: list[str]
) -> None:
    """It knows what may be seen, repeats the echo, cuts it anywhere, ends messages where it likes, and puts
    between the pieces what readers skip."""
    raw = KEY.encode()
    write = {"plain": lambda: raw, "base64": lambda: base64.b64encode(raw), "hex": lambda: raw.hex().encode()}
    stream = b" ; ".join(write[echo]() for echo in ["plain", *echoes])
    patterns, out, at = Patterns.of([KEY]), b"", 0
    scrubber = Scrubber(patterns)
    for turn in range(len(stream)):
        size, between, ends = cuts[turn % len(cuts)]
        out += scrubber.feed(stream[at : at + size] + between.encode())
        out += scrubber.flush() if ends else b""
        at += size
    out += scrubber.finish()
    assert not patterns.find(out)
    seen = out.translate(None, bytes(range(0x21)))
    private = KEY.removeprefix("sk-proj-").encode()
    assert not any(private[at : at + RUN] in seen for at in range(len(private) - RUN + 1))


@pytest.mark.parametrize("size", [1, 4, 9])
@pytest.mark.parametrize(
    "event",
    [
        'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null}]}\n\n',
        'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"%s"}}\n\n',
        '{"model":"m","created_at":"2026-11-22T19:15:00Z","response":"%s","done":false}\n',
        "data: %s\n\n",
    ],
)
def test_deltas_are_read_as_one_text(event: str, size: int) -> None:
    """Language models send a few letters a message: eleven of them are seen, and no event waits for
    another."""
    secret = KEY.removeprefix("sk-proj-")
    scrubber, out = Scrubber(Patterns.of([KEY]), in_messages=True), b""
    pieces = [secret[at : at + size] for at in range(0, len(secret), size)]
    for piece in pieces:
        sent = scrubber.feed((event % piece).encode())
        assert len(sent) == len(event % piece)
        out += sent
    scrubber.finish()
    masked = secret[: (RUN - 1) // size * size]
    masked += "*" * (len(secret) - len(masked))
    assert out.decode() == "".join(event % masked[at : at + size] for at in range(0, len(secret), size))
    assert [run.length for run in scrubber.take_runs()] == [len(secret)]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 30), st.lists(st.integers(0, 9999))
)
@settings(deadline=None)
def test_deltas_are_one_text_wherever_chunks_cut_them(sizes: list[int], before: int, cuts: list[int]) -> None:
    """Lines are looked at as they come, in pieces or several at once; other members are the same in each."""
    event = b'data: {"id":"chatcmpl-1","object":"chunk","delta":{"content":"%s","role":"assistant"}}\n\n'
    secret, pieces, at = KEY.removeprefix("sk-proj-").encode(), [b" word\\n"] * before, 0
    while at < len(secret):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(secret[at : at + size])
        at += size
    out, runs = run(
        Patterns.of([KEY]), split(b"".join(event % piece for piece in pieces), cuts), messages=True
    )
    said = b"".join(json.loads(line[6:])["delta"]["content"].encode() for line in out.split(b"\n\n")[:-1])
    assert not any(secret[at : at + RUN] in said for at in range(len(secret) - RUN + 1))
    assert [one.length for one in runs] == [len(secret)]


@given(
    st.lists(st.text("abAB09+/=&%_-", min_size=20, max_size=20), min_size=2, max_size=2),
    st.data(),
)
def test_how_a_stream_is_cut_says_nothing_about_the_secret(two: list[str], data: st.DataObject) -> None:
    """Two secrets, one stream that begins each of them: whatever the chunks, the same bytes leave at the same
    time. Otherwise a sandbox spells a secret by guesses, letter by letter, without ever seeing it."""
    beginnings = st.sampled_from([s[:n].encode() for s in two for n in range(1, RUN)])
    noise = st.sampled_from([b"\n", b' {"a": ', b"data", "é".encode(), b"\0", b"xyz" * 40])
    chunks = data.draw(st.lists(st.one_of(beginnings, noise), max_size=12))
    marked = [f"{secret}&" for secret in two]
    one, other = (Scrubber(Patterns.of([secret])) for secret in marked)
    for chunk in chunks:
        assert len(one.feed(chunk)) == len(other.feed(chunk))


@given(st.binary(max_size=400))
def test_what_waits_is_a_run_of_what_a_secret_could_go_on_with(data: bytes) -> None:
    """No more than a few escapes, and nothing before a byte of a kind that stands in none."""
    scrubber = Scrubber(Patterns.of([KEY]))
    waiting = data[len(scrubber.feed(data)) :]
    assert len(waiting) <= HELD
    assert not set(waiting) & (set(range(0x21)) | {0x7F, *b'"{}'} | set(range(0x80, 0x100)))


@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("length", [16, 17, 18, 40])
def test_base64_is_found_at_every_alignment(
    length: int, before: int, after: int, encode: Callable[[bytes], bytes]
) -> None:
    """Whatever stands around the secret before it was encoded, at most 4 bits remain at either end."""
    raw = b"S3cr>t?/+~k\xff\xfe\xfdabcdefghijklmnopqrstuvwxyz0123456789"[:length]
    encoded = encode(b"u" * before + raw + b"v" * after)
    out, runs = scrub_bytes(Patterns.of([raw]), b"Basic " + encoded + b"\n")
    assert len(runs) == 1 and runs[0].whole
    visible = out[6:-1]
    first, last = visible.index(b"*"), visible.rindex(b"*")
    assert first * 6 <= before * 8 + 4
    assert (last + 1) * 6 >= (before + len(raw)) * 8 - 4


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("writer", WRITERS)
def test_an_echo_by_a_common_writer_is_taken_out(secret: str, writer: str) -> None:
    """All of it, once, and nothing else of the text."""
    body = b'{"before": 1, "it": "' + WRITERS[writer](secret.encode()) + b'"}\n'
    out, runs = scrub_bytes(Patterns.of([Sought("it", secret)]), body)
    assert {one.secret for one in runs} == {"it"} and any(one.whole for one in runs)
    assert out.startswith(b'{"before": 1, "it": "') and out.endswith(b'"}\n')
    assert not Patterns.of([secret]).find(out)


@pytest.mark.parametrize(
    "layers", [("percent",) * 4, ("json",) * 4, ("html",) * 3, ("base64",) * 3, ("html", "json")]
)
def test_layers_in_each_other_are_undone(layers: tuple[str, ...]) -> None:
    """To a fixed depth, without a list of what is in what."""
    written = ODD.encode()
    for name in layers:
        written = WRITERS[name](written)
    out, runs = scrub_bytes(Patterns.of([ODD]), b"it: " + written)
    assert [one.whole for one in runs] == [True]
    assert not Patterns.of([ODD]).find(out)


LONG = b"".join(
    b"%d lines of a page that says little, <b>with tags</b> here and there\n" % line for line in range(40)
)
far = st.lists(
    st.sampled_from([LONG, LONG.replace(b"<b>with tags</b>", b"without them")]), min_size=1, max_size=4
).map(b"".join)


@given(
    st.data(),
    st.sampled_from(SECRETS),
    far,
    far,
    st.sampled_from([b"", b"\\n", b"%41", b"&amp;", b"=20", b"=\n", b"<i>", b"</i>", b"\\\\", b"\x1b[m"]),
)
@settings(deadline=None, max_examples=200)
def test_no_writer_gets_a_secret_through_far_from_what_else_is_undone(
    data: st.DataObject, secret: str, before: bytes, after: bytes, beside: bytes
) -> None:
    """In long texts only the surroundings of an escape or a tag are read again. The secret, all of it, and
    nothing else is taken out, wherever the last escape was."""
    layers = data.draw(st.lists(st.sampled_from(sorted(WRITERS)), max_size=2))
    for once in ("css", "quoted-printable"):
        assume(sum(name.startswith(once) for name in layers) < 2)
    written = secret.encode()
    for name in layers:
        written = WRITERS[name](written)
    before, after = before + beside + b'\n{"a": "', b'"}\n' + beside + after
    out, runs = scrub_bytes(Patterns.of([Sought("it", secret)]), before + written + after)
    assert out.startswith(before) and out.endswith(after)
    assert {one.secret for one in runs} == {"it"}
    assert not Patterns.of([secret]).find(out)


def test_columns_that_say_the_same_are_both_read() -> None:
    """What was read already is not read again, unless it was read from other bytes. The secret holds
    backslashes, so there are many readings."""
    secret = SECRETS[2]
    dump = WRITERS["hexdump -C"](WRITERS["JavaScript"](secret.encode()))
    out, _ = scrub_bytes(Patterns.of([secret]), dump)
    assert not Patterns.of([secret]).find(out)


@pytest.mark.parametrize("first", ["%73", "\\x73", "&#115;", "=73"])
@pytest.mark.parametrize("gap", [1, 80])
def test_letters_that_are_apart_are_read_together(first: str, gap: int) -> None:
    """One is escaped, and tags of 80 bytes stand between the others: eleven of them are within reach."""
    secret = "s" + KEY.removeprefix("sk-proj-")
    tag = f'<i class="{"c" * gap}">'
    far = "nothing but words, " * 500
    body = far + first + tag + tag.join(secret[1:RUN]) + far
    out = scrub_bytes(Patterns.of([secret + "z" * RUN]), body.encode())[0].decode()
    assert out == far + "*" * len(first) + tag + tag.join("*" * (RUN - 1)) + far


WRITERS_OF_URLS: dict[str, Callable[[str], str]] = {
    "yarl, a query's value": lambda s: str(URL("https://a.example/").with_query(q=s)),
    "yarl, a query": lambda s: str(URL(f"https://a.example/?q={s}")),
    "yarl, a path": lambda s: str(URL(f"https://a.example/{s}")),
    "httpx, a query": lambda s: str(httpx.URL(f"https://a.example/?q={s}")),
    "httpx, a path": lambda s: str(httpx.URL(f"https://a.example/{s}")),
    "httpx, parameters": lambda s: str(httpx.QueryParams({"q": s})),
    "requests": lambda s: requests.Request("GET", f"https://a.example/?q={s}").prepare().url or "",
    # as node 18 says them: URLSearchParams, URL's query, path and hash, escape()
    "URLSearchParams": lambda s: quote(s, safe="*").replace("~", "%7E"),
    "URL.search": lambda s: quote(s, safe="!$%&()*+,/:;=?@[\\]^`{|}"),
    "URL.pathname": lambda s: quote(s, safe="!$%&'()*+,/:;=@[]^|"),
    "URL.hash": lambda s: quote(s, safe="!#$%&'()*+,/:;=?@[\\]^{|}"),
    "escape": lambda s: quote(s, safe="*+-./@_").replace("~", "%7E"),
}


@pytest.mark.parametrize("writer", WRITERS_OF_URLS)
@pytest.mark.parametrize("secret", ["p@ss!w*rd~(x):y/z=1;2,3$4&5+6'7", '00000000000012;?"<>[]^`{|}\\!(*)'])
def test_a_secret_in_a_url_is_taken_out_whoever_wrote_the_url(secret: str, writer: str) -> None:
    """They differ in what they leave unescaped; `;` and `?` in one text came through yarl's way (fuzz)."""
    url = WRITERS_OF_URLS[writer](secret)
    out, runs = scrub_bytes(Patterns.of([secret]), url.encode())
    assert len(runs) == 1
    assert secret not in unquote_plus(out.decode()) and secret[:RUN] not in unquote(out.decode())


def test_syntax_around_a_mask_stays() -> None:
    """A mask covers characters and escapes of the secret, not what stands between or around them."""
    patterns = Patterns.of([KEY])
    assert json.loads(
        scrub_bytes(patterns, ESCAPES["json, every character"](b'"') and json.dumps([KEY, 1]).encode())[0]
    ) == ["*" * 30, 1]
    lines = ENCODINGS["base64 of MIME"](KEY.encode())
    assert scrub_bytes(patterns, lines)[0].count(b"\n") == lines.count(b"\n")
    assert scrub_bytes(patterns, KEY.encode("utf-16"))[0].decode("utf-16") == "*" * 30


def test_public_structure_is_no_secret() -> None:
    """A prefix alone, or another key with it."""
    other = b"sk-proj-zzzzzzzzzzzzzzzzzzzzzzzz sk-proj-"
    assert scrub_bytes(Patterns.of([KEY]), other) == (other, ())


def test_a_complete_event_leaves_when_it_is_complete() -> None:
    """Nothing of an SSE event waits, even if its data ends as a secret begins."""
    scrubber = Scrubber(Patterns.of([KEY]))
    for event in (b"data: hello\n\n", b'data: {"t": "sk-proj-01234"}\n\n'):
        assert scrubber.feed(event) == event
    assert scrubber.feed(b"data: sk-proj-0123") == b"data: "
    assert scrubber.feed(b"456789abcdefABCDEF\n\n") == b"*" * 30 + b"\n\n"


def test_secrets_that_come_later_are_looked_for_in_what_waits() -> None:
    """The beginning of the second one was held back under the first one's patterns."""
    second = "ghp_abcdefghijklmnopqrstUV0123"
    scrubber = Scrubber(Patterns.of([KEY]))
    out = scrubber.feed(b"a " + second[:12].encode())
    scrubber.look_for(Patterns.of([KEY, second]))
    out += scrubber.feed(second[12:].encode() + b" " + KEY.encode()) + scrubber.finish()
    assert out == b"a " + b"*" * len(second) + b" " + b"*" * len(KEY)
    assert scrubber.hits == 2


def test_memory_is_bounded() -> None:
    """A stream without a blank makes no more wait than a few escapes, and no more is kept of what left."""
    scrubber = Scrubber(Patterns.of([KEY]))
    sent = sum(len(scrubber.feed(b"a" * 7)) for _ in range(1000))
    assert 7000 - sent <= HELD
    assert max(len(each) for each in gc.get_referents(scrubber) if isinstance(each, bytes)) <= CONTEXT


def test_short_secrets_are_refused_without_being_named() -> None:
    """A short secret cannot be scrubbed; the error must not be its leak."""
    with pytest.raises(SecretTooShort) as raised:
        Patterns.of(["hunter2-hunter2"])
    assert "hunter2" not in str(raised.value)
    assert len("hunter2-hunter2") < MIN_SECRET_BYTES


def test_patterns_do_not_show_or_pickle_themselves() -> None:
    """No log line and no snapshot may get them."""
    compiled = Patterns.of([KEY])
    assert "sk-" not in repr(compiled) + str(compiled) + repr(Sought("openai", KEY))
    with pytest.raises(TypeError):
        pickle.dumps(compiled)


def test_no_secrets_means_nothing_changes() -> None:
    """A session that fetched nothing yet has empty, false patterns."""
    none = Patterns.of([])
    assert not none and not Patterns.of([]).beside(none)
    assert Scrubber(none).feed(b"nothing waits") == b"nothing waits"
    assert scrub_bytes(none, b"anything at all, long enough") == (b"anything at all, long enough", ())


def test_joined_patterns_find_what_all_of_them_would() -> None:
    """Beside each other, and many small ones together; in lower case, too."""
    many = [sha256(bytes([number])).hexdigest()[:30] + "Z" for number in range(5)]
    upper = "sk-proj-ABCDEFGHIJKLMNOPQRSTUVW"
    joined = Patterns.of([upper]).beside(
        Patterns.together(tuple(Patterns.small(text, text[:4]) for text in many))
    )
    out, runs = scrub_bytes(joined, " ".join([upper, *many]).encode())
    assert set(out) == set(b"* ") and len(runs) == 6
    assert not joined.find(upper.lower().encode()) and joined.lower_case.find(upper.lower().encode())
    assert len(joined) == len(Patterns.of([upper, *many])) and joined


@pytest.mark.parametrize("secret", ["sécret-sécret-sécret", "秘密の鍵はここにあります"])
def test_text_is_scrubbed_in_both_readings_of_its_bytes(secret: str) -> None:
    """A header value is latin-1 text whose bytes may be UTF-8; WebSocket text is Unicode."""
    compiled = Patterns.of([secret])
    as_header = secret.encode().decode("latin-1")
    clean, runs = scrub_text(compiled, f"https://example.org/?k={as_header}&x=1")
    assert (len(runs), set(clean[len("https://example.org/?k=") : -len("&x=1")])) == (1, {"*"})
    clean, runs = scrub_text(compiled, f"key: {secret} ✓")
    assert len(runs) == 1
    assert secret not in clean and clean.endswith("✓")


def test_text_that_has_no_encoding_is_scrubbed_and_otherwise_left_alone() -> None:
    """Half of a surrogate pair, as a careless JavaScript makes it: no reason to fail, or to change a byte."""
    compiled = Patterns.of([KEY])
    assert scrub_text(compiled, "\ud800 \u2713") == ("\ud800 \u2713", ())
    clean, runs = scrub_text(compiled, f"\ud800 {KEY}")
    assert len(runs) == 1 and clean.endswith(" " + "*" * len(KEY))


def test_what_was_masked_is_told_and_holds_nothing_of_it() -> None:
    """Each run with its secret's name, so that runs can be counted over answers; nobody who takes none fills
    the memory."""
    private = len(KEY) - len("sk-proj-")
    scrubber = Scrubber(Patterns.of([Sought("openai", KEY), "an unnamed secret of an old caller"]))
    scrubber.feed(f"{KEY}\n".encode())
    assert scrubber.take_runs() == (Run("openai", private, whole=True),)
    assert scrubber.take_runs() == ()
    for _ in range(MOST_RUNS + 10):
        scrubber.feed(f"{KEY}\n".encode())
    assert len(scrubber.take_runs()) == MOST_RUNS and scrubber.hits == MOST_RUNS + 11


@pytest.mark.parametrize("chunk", [5, 11, 40, 1000])
def test_a_part_is_told_once_and_as_a_part(chunk: int) -> None:
    """Whatever the chunks: one that a cut or a quotation left."""
    part = KEY[8 : 8 + RUN + 3].encode()
    body = b"x" * 50 + b" " + part + b" " + b"y " * 700
    scrubber = Scrubber(Patterns.of([Sought("openai", KEY)]))
    out = (
        b"".join(scrubber.feed(body[at : at + chunk]) for at in range(0, len(body), chunk))
        + scrubber.finish()
    )
    assert out == body.replace(part, b"*" * len(part))
    assert scrubber.take_runs() == (Run("openai", RUN + 3, whole=False),)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<em>", "</em>"),
        ("\\u003cem class=\\u0022hit\\u0022\\u003e", "\\u003c/em\\u003e"),
        ("&lt;mark&gt;", "&lt;/mark&gt;"),
        ('<span class="n">', '</span>\n<span class="o">'),
        ("\x1b[01;31m\x1b[K", "\x1b[m\x1b[K"),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 11])
def test_markup_does_not_cut_a_secret(before: str, after: str, size: int) -> None:
    """A search marks what it found, and the sandbox chooses what it searches for; pages and `grep` colour."""
    secret = KEY.removeprefix("sk-proj-")
    pieces = [secret[at : at + size] for at in range(0, len(secret), size)]
    body = "".join(f"{before}{piece}{after}" for piece in pieces)
    masked = "".join(f"{before}{'*' * len(piece)}{after}" for piece in pieces)
    assert scrub_bytes(Patterns.of([KEY]), body.encode())[0] == masked.encode()


def test_escapes_whose_digits_are_escaped_are_undone() -> None:
    """A second pass finds escapes that the first one made whole."""
    body = "".join("%" + "".join(f"%{ord(digit):02x}" for digit in f"{ord(char):02x}") for char in KEY)
    assert scrub_bytes(Patterns.of([KEY]), body.encode())[0].rstrip(b"*") in body[: 7 * 8].encode()


@pytest.mark.parametrize("event", ['data: "%s"\n\n', "data: %s\n\n", 'data: {"text": "%s"}\n\n'])
def test_events_that_hold_a_string_are_one_text(event: str) -> None:
    """As JSON or bare: quotation marks between pieces are no letters."""
    secret = KEY.removeprefix("sk-proj-")
    scrubber = Scrubber(Patterns.of([KEY]), in_messages=True)
    pieces = [secret[at : at + 4] for at in range(0, len(secret), 4)]
    out = b"".join([*(scrubber.feed((event % piece).encode()) for piece in pieces), scrubber.finish()])
    assert out.count(b"****") >= len(pieces) - 3


def test_a_guess_between_the_letters_of_a_known_secret_is_told() -> None:
    """What messages say under one key stands around what they say under another."""
    known, wanted = "KnownToAllTheWorldHere0123456789", KEY.removeprefix("sk-proj-")
    scrubber = Scrubber(Patterns.of([Sought("known", known), Sought("it", KEY)]), in_messages=True)
    pieces = (("k", known[:16]), ("j", wanted[:13]), ("k", known[16:]))
    scrubber.feed("".join(f'{{"{key}":"{text}"}}\n' for key, text in pieces).encode())
    scrubber.finish()
    assert {(run.secret, run.length, run.whole) for run in scrubber.take_runs()} == {
        ("known", 32, True),
        ("it", 13, False),
    }


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "backslashes": lambda size: b"\\" * size,
    "percent": lambda size: b"%25" * (size // 3),
    "ampersands": lambda size: b"&amp;" * (size // 5),
    "base64": lambda size: b"QUFB" * (size // 4),
    "hex": lambda size: b"41" * (size // 2),
    "numbers": lambda size: b"65," * (size // 3),
    "quoted-printable": lambda size: b"=3D" * (size // 3),
    "a dump": lambda size: ENCODINGS["hexdump -C"](b"A" * (size // 5)),
    "eleven of twelve": lambda size: (KEY[8:19] + " x").encode() * (size // 13),
    "echoes": lambda size: (KEY + " ").encode() * (size // 31),
    "echoes by key": lambda size: b"".join(
        b'{"%d":"%b"}\n' % (at % 9, KEY.encode()) for at in range(size // 37)
    ),
    "tags": lambda size: b"<b>x</b>" * (size // 8),
    "unclosed tags": lambda size: b"<a" * (size // 2),
    "colours": lambda size: b"\x1b[1m\x1b[" * (size // 6),
    "every escape": lambda size: b"\\u005c%5c&#92;\\3d =3D" * (size // 21),
}


@pytest.mark.parametrize("body", HOSTILE)
def test_cost_is_linear_whatever_an_upstream_sends(body: str) -> None:
    """Each layer that can be undone, all over, and what is nearly a secret."""
    patterns = Patterns.of([KEY, ODD])

    def scrub(size: int) -> None:
        scrubber = Scrubber(patterns, in_messages="key" in body)
        data = HOSTILE[body](size)
        for at in range(0, len(data), 65536):
            scrubber.feed(data[at : at + 65536])
        scrubber.finish()

    assert growth(scrub, 16384) <= LINEAR
