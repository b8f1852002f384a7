"""I1: any secret, as any common writer echoes it, in any coding and split: no reader gets it out again."""

import base64
import gzip
import html
import json
import re
import zlib
from collections.abc import Callable
from itertools import pairwise
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlencode
from xml.sax.saxutils import escape, quoteattr

import brotli
import httpx
import requests
import zstandard
from hypothesis import assume, event, given
from hypothesis import strategies as st
from yarl import URL

from coatcheck.decision.body_scrubber import BodyScrubber
from coatcheck.decision.content_coding import Decoder
from coatcheck.decision.denial import Deny
from coatcheck.decision.message import RequestHead, ResponseHead
from coatcheck.decision.response import ResponsePlan, plan_response
from coatcheck.decision.scrub import Patterns
from tests.fuzz.budget import budget

USER = "x-access-token"
WRITERS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "basic": lambda text: base64.b64encode(f"{USER}:{text}".encode()).decode(),
    "basic of another user": lambda text: base64.b64encode(f"me:{text}".encode()).decode(),
    "base64 in the middle": lambda text: base64.b64encode(f"a secret: {text} it was".encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "percent": quote,
    "percent, all": lambda text: quote(text, safe=""),
    "percent, lower case": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "form": quote_plus,
    "form of a library": lambda text: urlencode({"q": text}),
    "query of httpx": lambda text: str(httpx.QueryParams({"q": text})),
    "query of yarl": lambda text: str(URL("https://a.example/").with_query(q=text)),
    "query of requests": lambda text: str(
        requests.Request("GET", "https://a.example/", params={"q": text}).prepare().url
    ),
    "form of a browser": lambda text: quote_plus(text, safe="*").replace("~", "%7E"),
    "json": json.dumps,
    "json, raw": lambda text: json.dumps(text, ensure_ascii=False),
    "json of PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "json of Go": lambda text: re.sub(
        "[<>&]", lambda f: f"\\u{ord(f[0]):04x}", json.dumps(text, ensure_ascii=False)
    ),
    "html": html.escape,
    "html, text": lambda text: html.escape(text, quote=False),
    "xml": escape,
    "html of PHP": lambda text: html.escape(text).replace("&#x27;", "&#039;"),
    "xml of lxml": lambda text: escape(text, {"'": "&apos;", '"': "&quot;"}),
    "xml attribute": lambda text: quoteattr(text, {"'": "&#39;", '"': "&quot;"}),
    "base64 in json": lambda text: json.dumps(base64.b64encode(f"{USER}:{text}".encode()).decode()),
    "base64 in a URL": lambda text: quote(base64.b64encode(f"{USER}:{text}".encode()).decode(), safe=""),
}
READERS: tuple[Callable[[str], str], ...] = (
    str,
    unquote,
    unquote_plus,
    html.unescape,
    lambda text: re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text),
    lambda text: re.sub(r'\\(["\\/])', r"\1", text),
)
CODINGS: dict[tuple[str, ...], Callable[[bytes], bytes]] = {
    (): bytes,
    ("gzip",): gzip.compress,
    ("deflate",): zlib.compress,
    ("br",): lambda body: brotli.compress(body, quality=1),
    ("zstd",): zstandard.compress,
}
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}")

_secrets = st.one_of(
    st.from_regex(r"(sk-|ghp_|)[A-Za-z0-9_-]{20,60}", fullmatch=True),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16, max_size=60),
    st.text(st.sampled_from("ab/+=\"'<>&\\%~!äß€ "), min_size=16, max_size=40).map(lambda text: f"K{text}K"),
).filter(lambda text: len(set(text)) > 4)
_between = st.lists(
    st.sampled_from(["data: x\n\n", "*" * 20, "%", "\\", "&", "YWJj", "äß", '{"a": "', '"}', "a=b&"])
    | st.text(max_size=20),
    max_size=3,
).map("".join)


@given(
    _secrets, st.lists(st.tuples(_between, st.sampled_from(sorted(WRITERS))), max_size=4), _between, st.data()
)
@budget(200)
def test_no_reader_gets_the_secret_out_of_what_was_scrubbed(
    secret: str, echoes: list[tuple[str, str]], end: str, data: st.DataObject
) -> None:
    """And a body without an echo is as it was."""
    assume(secret not in "".join(text for text, _ in echoes) + end)
    text = "".join(between + WRITERS[writer](secret) for between, writer in echoes) + end
    body = text.encode("utf-8", "surrogatepass")
    codings = data.draw(st.sampled_from(sorted(CODINGS)))
    sent = CODINGS[codings](body)
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=6))
    decoder, scrubber = Decoder(codings), BodyScrubber(Patterns.of([secret]))
    out = b"".join(
        b"".join(scrubber.feed(piece))
        for a, b in pairwise([0, *sorted(cuts), len(sent)])
        for piece in decoder.decode(sent[a:b])
    )
    out += b"".join(scrubber.finish())
    assert len(out) == len(body)
    assert scrubber.hits or not echoes
    if not scrubber.hits:
        assert out == body
    _nobody_reads(secret, out.decode("utf-8", "replace"))


@given(
    _secrets,
    st.sampled_from(sorted(WRITERS)),
    _between,
    st.sampled_from(["etag", "x-a", "server", "link", "www-authenticate"]),
)
@budget(150)
def test_no_reader_gets_the_secret_out_of_a_header(secret: str, writer: str, before: str, name: str) -> None:
    """Latin-1 text whose bytes may be UTF-8."""
    value = (
        re.sub(r"[\x00-\x1f\x7f]", "", before + WRITERS[writer](secret))
        .encode("utf-8", "ignore")
        .decode("latin-1")
    )
    answer = ResponseHead(200, ((name, value), ("content-length", "0")))
    plan = plan_response(
        RequestHead("GET", "/", ()), answer, authenticated=True, patterns=Patterns.of([secret])
    )
    if isinstance(plan, Deny):
        return
    assert isinstance(plan, ResponsePlan)
    event("sent" if plan.hits else "dropped")
    for _, kept in plan.headers:
        _nobody_reads(secret, kept.encode("latin-1").decode("utf-8", "replace"))


def _nobody_reads(secret: str, text: str) -> None:
    for reader in READERS:
        read = reader(text)
        assert secret not in read
        for found in _BASE64.findall(read.replace("-", "+").replace("_", "/")):
            for start in range(4):
                run = found[start : start + (len(found) - start) // 4 * 4]
                assert secret.encode() not in base64.b64decode(run)
