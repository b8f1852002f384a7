"""I9: whatever takes bytes from outside costs as much as they are long, and none is forgotten.

The functions are found by their annotations. One that has no input here fails the test: somebody has to think
of what costs it most.
"""

import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

import coatcheck
from coatcheck.decision import body_search, explain, host, injection, observing, path, policy, response
from coatcheck.decision import decide as deciding
from coatcheck.decision import head as heads
from coatcheck.decision import response_headers as fields
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import RequestHead, ResponseHead
from coatcheck.decision.policy import Shape
from coatcheck.decision.ranges import asked_part
from coatcheck.decision.scrub import Patterns
from coatcheck.decision.search import find, mask
from coatcheck.decision.steering import read_steering
from coatcheck.decision.substitute import body_limit
from coatcheck.decision.verdict import Injection
from coatcheck.planes.mitm.destination import with_one_host
from coatcheck.sigv4.claim import read_claim
from coatcheck.sigv4.covered import needs_body_hash
from tests.decision.cost import LINEAR, growth
from tests.decision.test_decide import API, CREDENTIALS, PEER, POLICY, world

ROOMS = ("coatcheck.decision.", "coatcheck.sigv4.", "coatcheck.planes.mitm.destination")
"""Where bytes from outside are judged. What calls these hands on what it was given."""
OUTSIDE = re.compile(r"\b(OutsideText|OutsideBytes|Headers|RequestHead|ResponseHead)\b")
SIZE = 2048
"""And sixteen times as much, half of what a head may have."""

REFERENCES = (Shape("ghp_", 36), Shape("aaaa", 40))
PATTERNS = Patterns.of(["sk-proj-0123456789abcdefABCDEF", "a" * 40])
PIECES = (
    "a", "%25", "%2525", "%", "%63%63%68%5f", "/", "/.", ";", ",", "a,", "=", "&", "a=b&", " ", "\t",
    "cch_eyJ", "cch_eyJ.", "ghp_", "aaaa", "\xe9", "\x80", "Basic ", "YWE=", ".", "-", ":", "[", "]", "@",
    "1", "0", "\\u003d",
    "&#", "gzip,", "bytes=0-1,", "x;q=", "..", "~", "'", '"', "*",
)  # fmt: skip
"""What is repeated: each is what some parser here splits at, undoes or looks behind."""


def text(piece: str, size: int) -> str:
    return (piece * (size // len(piece) + 1))[:size]


NAMES = (
    "x-value", "authorization", "host", "connection", "upgrade", "cookie", "range", "content-type",
    "content-encoding", "content-length", "transfer-encoding", "accept-encoding", "x-http-method-override",
    "x-forwarded-host", "x-original-url", "destination", "x-amz-copy-source", "sec-websocket-extensions",
)  # fmt: skip


def in_header(piece: str, size: int) -> Iterator[RequestHead]:
    """One long value in each header that somebody reads, and many short ones."""
    for name in NAMES:
        yield RequestHead("GET", "/v1", ((name, text(piece, size)),))
    yield RequestHead("GET", "/v1", tuple((f"x-{n}", text(piece, 64)) for n in range(size // 64)))
    yield RequestHead("GET", "/v1", tuple((text("a", 64), "") for _ in range(size // 64)))


def in_target(piece: str, size: int) -> Iterator[RequestHead]:
    yield RequestHead("GET", "/v1/" + text(piece, size), (("host", "api.example.org"),))
    yield RequestHead("GET", "/v1?" + text(piece, size), (("host", "api.example.org"),))


def answers(piece: str, size: int) -> Iterator[ResponseHead]:
    for head in in_header(piece, size):
        yield ResponseHead(200, head.headers)


type Run = Callable[[str, int], None]
"""With a piece, and how long the text of it is."""


def with_text(function: Callable[[str], object]) -> Run:
    def run(piece: str, size: int) -> None:
        with suppress(ValueError):
            function("/" + text(piece, size))
        with suppress(ValueError):
            function(text(piece, size))

    return run


def with_head(function: Callable[[RequestHead], object]) -> Run:
    def run(piece: str, size: int) -> None:
        for made in (*in_target(piece, size), *in_header(piece, size)):
            function(made)

    return run


def with_answer(function: Callable[[ResponseHead], object]) -> Run:
    def run(piece: str, size: int) -> None:
        for made in answers(piece, size):
            with suppress(fields.HeaderRefused):
                function(made)

    return run


def search_body(piece: str, size: int) -> None:
    for masking in (False, True):
        search = body_search.BodySearch(REFERENCES, masking=masking)
        search.feed(text(piece, size).encode("latin-1"))
        search.close()


GET = RequestHead("GET", "/v1", ())
DENIED = Deny(Reason.HOST_NOT_ALLOWED)
KEY = CREDENTIALS["api"]

ADVERSARIES: dict[str, Run] = {
    "decision.body_search:BodySearch.feed": search_body,
    "decision.decide:decide": with_head(lambda head: deciding.decide(PEER, API, head, world())),
    "decision.explain:explain": with_head(lambda head: explain.explain(POLICY, ("api",), API, head)),
    "decision.head:check_head": with_head(lambda head: heads.check_head(head, http2=False)),
    "decision.head:check_connect": with_head(heads.check_connect),
    "decision.host:canonical_host": with_text(host.canonical_host),
    "decision.host:split_authority": with_text(lambda value: host.split_authority(value, 443)),
    "decision.injection:Injector.buffers": with_head(KEY.inject.buffers),
    "decision.injection:Injector.shown": with_head(lambda head: KEY.inject.shown(head, "v")),
    "decision.injection:only_value": with_head(lambda head: injection.only_value(head, "x-value")),
    "decision.observing:observed": with_head(lambda head: observing.observed(POLICY, DENIED, API, head, 0.0)),
    "decision.path:ambiguous": with_text(path.ambiguous),
    "decision.path:canonical_path": with_text(path.canonical_path),
    "decision.path:check_target": with_text(path.check_target),
    "decision.path:spellings": with_text(path.spellings),
    "decision.policy:credential_allows": with_head(
        lambda head: policy.credential_allows(CREDENTIALS["body"], API, head)
    ),
    "decision.policy:fits": with_head(lambda head: policy.fits(POLICY.rules[0], API, head)),
    "decision.policy:match": with_head(lambda head: policy.match(POLICY, API, head)),
    "decision.ranges:asked_part": with_head(
        lambda head: asked_part(head, ResponseHead(200, head.headers), 1000)
    ),
    "decision.response:message_coding": with_answer(response.message_coding),
    "decision.response:plan_request_for_scrubbing": with_head(
        lambda head: response.plan_request_for_scrubbing(head, secrets=True, compression=True)
    ),
    "decision.response:plan_response": with_answer(
        lambda answer: response.plan_response(GET, answer, authenticated=True, patterns=PATTERNS)
    ),
    "decision.response:plan_trailers": with_answer(
        lambda answer: response.plan_trailers(answer.headers, PATTERNS)
    ),
    "decision.response:readable_charset": with_answer(response.readable_charset),
    "decision.response_headers:checked_headers": with_answer(lambda a: fields.checked_headers(a.headers)),
    "decision.response_headers:content_length": with_answer(fields.content_length),
    "decision.response_headers:end_to_end": with_answer(lambda a: fields.end_to_end(a.headers, 200)),
    "decision.response_headers:masked": with_answer(lambda a: fields.masked(a.headers, PATTERNS)),
    "decision.response_headers:without": with_answer(
        lambda a: fields.without(a.headers, frozenset({"host"}))
    ),
    "decision.search:find": with_head(lambda head: find(head, REFERENCES)),
    "decision.search:mask": with_text(lambda value: mask(value, REFERENCES)),
    "decision.steering:read_steering": with_head(lambda head: read_steering(API, head)),
    "decision.substitute:body_limit": with_head(lambda head: body_limit(head, (Injection(KEY, None),))),
    "planes.mitm.destination:with_one_host": with_head(lambda head: with_one_host(API, head)),
    "sigv4.claim:read_claim": with_head(read_claim),
    "sigv4.covered:needs_body_hash": with_head(needs_body_hash),
}
ELSEWHERE = {
    "decision.replay": "recorded requests, which an operator judges again",
    "decision.substitute:substitute": "what `find` has found in a head, once each",
    "planes.mitm.destination:destination_of": "hands on to `host.split_authority` and `with_one_host`",
    "sigv4.covered:covered": "a claim that `read_claim` has made of the head",
    "sigv4.resign:resign": "a claim that `read_claim` has made of the head, after the verdict",
}
"""What is not fed here, and why not."""


def takers() -> list[str]:
    """Every public function, and method, that takes what is from outside."""
    found = []
    for module in pkgutil.walk_packages(coatcheck.__path__, "coatcheck."):
        if not module.name.startswith(ROOMS):
            continue
        made = importlib.import_module(module.name)
        for name, each in vars(made).items():
            if getattr(each, "__module__", None) != module.name or name.startswith("_"):
                continue
            members = vars(each).items() if inspect.isclass(each) else [("", each)]
            for member, function in members:
                if member.startswith("_") or not inspect.isfunction(function):
                    continue
                taken = [str(kind) for word, kind in function.__annotations__.items() if word != "return"]
                if any(OUTSIDE.search(kind) for kind in taken):
                    found.append(f"{module.name[10:]}:{name}.{member}".rstrip("."))
    return sorted(found)


def test_no_function_that_takes_bytes_from_outside_is_forgotten() -> None:
    """Each has an input here, or a reason; and what has either is still there."""
    found = takers()
    excused = {each for each in found if each in ELSEWHERE or each.partition(":")[0] in ELSEWHERE}
    assert set(found) - excused == set(ADVERSARIES)
    assert len(found) > 30


@pytest.mark.parametrize("function", ADVERSARIES)
def test_the_cost_grows_with_the_length(function: str) -> None:
    """Sixteen times as much costs at most 24 times as much, whatever is repeated."""
    run = ADVERSARIES[function]
    # What is quadratic for a piece is the dearest when it is long: only the three dearest are measured well.
    dear = sorted(PIECES, key=lambda piece: cost(run, piece), reverse=True)[:3]
    for piece in dear:
        assert growth(lambda size, piece=piece: run(piece, size), SIZE) <= LINEAR, (function, piece)  # type: ignore[misc]


def cost(run: Run, piece: str) -> float:
    """Seconds, once."""
    start = time.thread_time()
    run(piece, 16 * SIZE)
    return time.thread_time() - start
