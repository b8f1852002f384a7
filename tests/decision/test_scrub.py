"""The scrubber: any split gives the same output, nothing of a pattern gets out, nothing waits needlessly."""

import base64
import json
import pickle
from collections.abc import Callable
from html import escape
from itertools import pairwise
from urllib.parse import quote, unquote, unquote_plus

import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from coatcheck.decision.scrub import (
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

# Few letters and shared beginnings, so that patterns overlap, nest and contain each other's prefixes.
NESTED = (
    b"abababababababab",
    b"ababababababababab",
    b"babababababababaa",
    b"aaaaaaaaaaaaaaaa",
    b"aaaaaaaaaaaaaaaab",
    b"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbba",
    b"abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
)
pieces = st.one_of(st.sampled_from(NESTED), st.binary(max_size=6), st.text("ab", max_size=20).map(str.encode))
streams = st.lists(pieces, max_size=12).map(b"".join)
secrets = st.one_of(
    st.text("abAB09+/=&% \"'<>\\~*_-", min_size=MIN_SECRET_BYTES, max_size=40),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=MIN_SECRET_BYTES, max_size=40),
)


def union_of_all(patterns: tuple[bytes, ...], data: bytes) -> tuple[bytes, int]:
    """The definition, written naively: mask every byte that any occurrence covers."""
    spans = sorted(
        (at, at + len(p)) for p in set(patterns) for at in range(len(data)) if data.startswith(p, at)
    )
    masked, end, hits = bytearray(data), 0, 0
    for start, stop in spans:
        hits += start >= end
        end = max(end, stop)
        masked[start:stop] = b"*" * (stop - start)
    return bytes(masked), hits


@given(streams, st.lists(st.integers(0, 200), max_size=6))
def test_joined_patterns_mask_what_all_of_them_would(data: bytes, cuts: list[int]) -> None:
    """However their tables are spread, and whatever the split."""
    small = Patterns.together((Patterns(NESTED[3:5], 2), Patterns(NESTED[5:], 4)))
    joined = Patterns(NESTED[:3]).beside(small)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in pairwise(places)]
    assert run(joined, chunks) == run(joined.lower_case, chunks) == union_of_all(NESTED, data)
    assert len(joined) == len(NESTED) and joined and not Patterns([]).beside(Patterns([]))


def test_joined_patterns_hold_back_what_any_of_them_may_need() -> None:
    """The longest, and every kind of byte that stands in one."""
    joined = Patterns([b"a" * 16]).beside(Patterns.together((Patterns([b"(" * 40], 4),)))
    assert joined.undecided(b"x" * 100) == joined.undecided(b"(" * 100) == 39
    assert joined.undecided(b"\n" * 100) == 0


def run(patterns: Patterns, chunks: list[bytes]) -> tuple[bytes, int]:
    scrubber = Scrubber(patterns)
    out = b"".join([*map(scrubber.feed, chunks), scrubber.finish()])
    return out, scrubber.hits


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(at)]


@given(st.lists(st.sampled_from(NESTED), min_size=1), streams, st.lists(st.integers(0, 1000), max_size=20))
def test_any_split_gives_the_output_of_the_naive_definition(
    patterns: list[bytes], data: bytes, cuts: list[int]
) -> None:
    """Output and hits depend on the stream only, whatever the chunks."""
    expected = union_of_all(tuple(patterns), data)
    compiled = Patterns(patterns)
    assert run(compiled, split(data, cuts)) == expected
    assert run(compiled, [bytes([byte]) for byte in data]) == expected


@given(st.lists(st.binary(min_size=16, max_size=90), min_size=1, max_size=5), st.data())
def test_patterns_of_any_length_are_found_at_any_offset(patterns: list[bytes], data: st.DataObject) -> None:
    """The sampled search misses no position, for every stride that the lengths give."""
    pieces = st.one_of(st.sampled_from(patterns), st.binary(max_size=70))
    body = b"".join(data.draw(st.lists(pieces, max_size=8)))
    cuts = data.draw(st.lists(st.integers(0, 1000), max_size=6))
    assert run(Patterns(patterns), split(body, cuts)) == union_of_all(tuple(patterns), body)


@given(
    st.lists(st.text("abAB09+/=&%_-", min_size=20, max_size=20), min_size=2, max_size=2),
    st.data(),
)
def test_how_a_stream_is_cut_says_nothing_about_the_secret(two: list[str], data: st.DataObject) -> None:
    """Two secrets, one stream that begins each of them: whatever the chunks, the same bytes leave at the same
    time. Otherwise a sandbox spells a secret by guesses, letter by letter, without ever seeing it."""
    beginnings = st.sampled_from([s[:n].encode() for s in two for n in range(1, 16)])
    noise = st.sampled_from([b"\n", b' {"a": ', b"data", "é".encode(), b"\0", b"xyz" * 40])
    chunks = data.draw(st.lists(st.one_of(beginnings, noise), max_size=12))
    one, other = (Scrubber(Patterns([s.encode(), s.encode().hex().encode()])) for s in two)
    for chunk in chunks:
        assert len(one.feed(chunk)) == len(other.feed(chunk))


@given(st.lists(st.sampled_from(NESTED), min_size=1), streams, st.integers(0, 1000))
def test_what_waits_is_a_run_of_what_a_pattern_could_go_on_with(
    patterns: list[bytes], data: bytes, cut: int
) -> None:
    """No more than one pattern's length, and nothing before a byte of a kind that stands in none."""
    (fed, _) = split(data, [cut])
    scrubber = Scrubber(Patterns(patterns))
    waiting = fed[len(scrubber.feed(fed)) :]
    assert len(waiting) < max(map(len, patterns))
    assert not set(waiting) & (set(range(0x21)) | {0x7F, *b'"{}'} | set(range(0x80, 0x100)))
    begun = max((n for p in patterns for n in range(1, len(p)) if fed.endswith(p[:n])), default=0)
    assert len(waiting) >= begun


@given(secrets, streams, streams)
def test_no_output_contains_a_pattern_and_lengths_stay(secret: str, before: bytes, after: bytes) -> None:
    """Every form of the secret is gone from the output, and framing by length still holds."""
    compiled = Patterns.of([secret])
    for echo in (secret.encode(), base64.b64encode(secret.encode()), json.dumps(secret).encode()):
        body = before + echo + after
        out, runs = scrub_bytes(compiled, body)
        assert runs
        assert len(out) == len(body)
        assert not compiled.occurrences(out)
        assert secret.encode() not in out


@pytest.mark.parametrize("length", [16, 17, 18, 40])
@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_is_found_at_every_alignment(length: int, before: int, after: int, encode) -> None:  # type: ignore[no-untyped-def]
    """Whatever stands around the secret before it was encoded, at most 4 bits remain at either end."""
    raw = b"S3cr>t?/+~k\xff\xfe\xfdabcdefghijklmnopqrstuvwxyz0123456789"[:length]
    encoded = encode(b"u" * before + raw + b"v" * after)
    out, runs = scrub_bytes(Patterns.of([raw]), b"Basic " + encoded + b"\n")
    assert len(runs) == 1
    # Replace what is left by zeros and decode: no whole byte of the secret's inside may be known.
    visible = out[6:-1]
    first, last = visible.index(b"*"), visible.rindex(b"*")
    assert first * 6 <= before * 8 + 4
    assert (last + 1) * 6 >= (before + len(raw)) * 8 - 4


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s,
        lambda s: quote(s, safe=""),
        lambda s: quote(s),
        lambda s: quote(s, safe="!'()*"),
        lambda s: quote(s, safe="").replace("%20", "+"),
        lambda s: quote(s, safe="*").replace("%20", "+").replace("~", "%7E"),
        lambda s: json.dumps(s)[1:-1],
        lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
        lambda s: json.dumps(s)[1:-1].replace("/", "\\/"),
        lambda s: json.dumps(s)[1:-1].replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        lambda s: s.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"),
        lambda s: escape(s, quote=False).replace('"', "&#34;").replace("'", "&#39;").replace("+", "&#43;"),
        lambda s: escape(s).replace("+", "&#x2B;"),
        lambda s: escape(s).replace("/", "&#x2F;").replace("=", "&#x3D;"),
        lambda s: escape(s, quote=False).replace('"', "&quot;").replace("'", "&#039;"),
        lambda s: escape(base64.b64encode(b"user:" + s.encode()).decode()).replace("+", "&#43;"),
        lambda s: s.encode().hex(),
        lambda s: quote(base64.b64encode(b"user:" + s.encode()), safe=""),
        lambda s: json.dumps("Basic " + base64.b64encode(b"u:" + s.encode()).decode()).replace("/", "\\/"),
    ],
)
@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-0123456789abcdefABCDEF",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE+=",
        'p<a>s&s "w\\ö~r*d" ✓ é=1+1/2',
    ],
)
def test_an_echo_in_a_usual_encoding_is_taken_out(secret: str, write) -> None:  # type: ignore[no-untyped-def]
    """Plain, percent, JSON, HTML (Go, .NET, mustache, PHP), hex, and base64 within them."""
    echo = write(secret).encode()
    out, runs = scrub_bytes(Patterns.of([secret]), b'{"e":"' + echo + b'"}\n')
    assert len(runs) == 1
    assert secret.encode() not in out
    assert out.count(b"*") >= len(echo) - len("Basic dTpz") - 8 - echo.count(b"*")


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
    assert secret not in unquote_plus(out.decode()) and secret[:12] not in unquote(out.decode())


@pytest.mark.parametrize(
    ("double", "single"),
    [("&#34;", "&#39;"), *(("&quot;", single) for single in ("'", "&#x27;", "&#39;", "&#039;", "&apos;"))],
)
def test_a_secret_with_quotes_is_taken_out_of_any_page(double: str, single: str) -> None:
    """Writers of HTML and XML mix the ways of writing the two (fuzz)."""
    echo = "p'a\"ss<word>&0123456789".replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    echo = echo.replace('"', double).replace("'", single)
    out, runs = scrub_bytes(Patterns.of(["p'a\"ss<word>&0123456789"]), f"<p t='{echo}'>".encode())
    assert (out, len(runs)) == (b"<p t='" + b"*" * len(echo) + b"'>", 1)


def test_an_occurrence_a_byte_behind_another_is_found() -> None:
    """Only a pattern of one letter has such; its whole run is masked."""
    for length in range(16, 20):
        out, runs = scrub_bytes(Patterns([b"a" * 16]), b"a" * length)
        assert (out, len(runs)) == (b"*" * length, 1)


def test_lower_case_percent_hex_is_found() -> None:
    """Some writers use %2f, some %2F."""
    secret = "abc/def+ghi=jkl/mno"
    for echo in (b"abc%2fdef%2bghi%3djkl%2fmno", b"abc%2Fdef%2Bghi%3Djkl%2Fmno"):
        out, runs = scrub_bytes(Patterns.of([secret]), echo)
        assert (out, len(runs)) == (b"*" * len(echo), 1)


def test_known_basic_user_names_leave_nothing() -> None:
    """With the user name known, the whole encoding is masked, ends and padding included."""
    secret = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
    echo = base64.b64encode(b"x-access-token:" + secret.encode())
    clean, _ = scrub_bytes(Patterns.of([secret], ["x-access-token"]), b"Basic " + echo)
    assert clean == b"Basic " + b"*" * len(echo)


def test_a_complete_event_leaves_when_it_is_complete() -> None:
    """Nothing of an SSE event waits, even if its data ends as a secret begins."""
    scrubber = Scrubber(Patterns.of(["sk-proj-0123456789abcdefABCDEF"]))
    for event in (
        b"data: hello\n\n",
        b'data: {"t": "sk-proj-01234"}\n\n',
        b"data: sk-proj-0123456789abcde\n\n",
    ):
        assert scrubber.feed(event) == event
    assert scrubber.feed(b"data: sk-proj-0123") == b"data: "
    assert scrubber.feed(b"456789abcdefABCDEF\n\n") == b"*" * 30 + b"\n\n"


def test_secrets_that_come_later_are_looked_for_in_what_waits() -> None:
    """The beginning of the second one was held back under the first one's patterns."""
    first, second = "sk-proj-0123456789abcdefABCDEF", "ghp_abcdefghijklmnopqrstuv"
    scrubber = Scrubber(Patterns.of([first]))
    out = scrubber.feed(b"a " + second[:12].encode())
    scrubber.look_for(Patterns.of([first, second]))
    out += scrubber.feed(second[12:].encode() + b" " + first.encode()) + scrubber.finish()
    assert out == b"a " + b"*" * len(second) + b" " + b"*" * len(first)
    assert scrubber.hits == 2


def test_memory_is_bounded_by_the_longest_pattern() -> None:
    """A stream without a blank makes no more wait than one pattern's length."""
    secret = "a" * 64 + "b"
    scrubber = Scrubber(Patterns([secret.encode()]))
    sent = sum(len(scrubber.feed(b"a" * 7)) for _ in range(1000))
    assert 7000 - sent <= 64


def test_short_secrets_are_refused_without_being_named() -> None:
    """A short secret cannot be scrubbed; the error must not be its leak."""
    with pytest.raises(SecretTooShort) as raised:
        Patterns.of(["hunter2-hunter2"])
    assert "hunter2" not in str(raised.value)


def test_patterns_do_not_show_or_pickle_themselves() -> None:
    """They hold secrets in a dozen forms: no log line and no snapshot may get them."""
    compiled = Patterns.of(["sk-proj-0123456789abcdefABCDEF"])
    assert "sk-" not in repr(compiled) + str(compiled)
    with pytest.raises(TypeError):
        pickle.dumps(compiled)


def test_no_secrets_means_nothing_changes() -> None:
    """A session that fetched nothing yet has empty, false patterns."""
    none = Patterns.of([])
    assert not none
    assert Scrubber(none).feed(b"nothing waits") == b"nothing waits"
    assert scrub_bytes(none, b"anything at all, long enough to be sampled") == (
        b"anything at all, long enough to be sampled",
        (),
    )


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
    secret = "sk-proj-0123456789abcdefABCDEF"
    compiled = Patterns.of([secret])
    assert scrub_text(compiled, "\ud800 \u2713") == ("\ud800 \u2713", ())
    clean, runs = scrub_text(compiled, f"\ud800 {secret}")
    assert len(runs) == 1 and clean.endswith(" " + "*" * len(secret))


def test_what_was_masked_is_told_and_holds_nothing_of_it() -> None:
    """Each run with its secret's name, so that runs can be counted over answers; nobody who takes none fills
    the memory."""
    secret = "sk-proj-0123456789abcdefABCDEF"
    scrubber = Scrubber(Patterns.of([Sought("openai", secret), "an unnamed secret of an old caller"]))
    scrubber.feed(f"{secret}\n".encode())
    assert scrubber.take_runs() == (Run("openai", len(secret), True),)
    assert scrubber.take_runs() == ()
    for _ in range(MOST_RUNS + 10):
        scrubber.feed(f"{secret}\n".encode())
    assert len(scrubber.take_runs()) == MOST_RUNS and scrubber.hits == MOST_RUNS + 11
    assert secret not in repr(Sought("openai", secret)) + repr(Run("openai", 30, True))
