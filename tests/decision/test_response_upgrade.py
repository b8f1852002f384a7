"""101: WebSocket alone, allowed by the rule, asked for in full, with nothing that hides messages."""

import pytest

from coatcheck.decision.message import Headers, RequestHead, ResponseHead
from coatcheck.decision.response import Framing, ResponsePlan, plan_response
from tests.decision.test_response import PATTERNS, UPGRADE, accepted, plan, refused

ANSWER: Headers = (
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-accept", "ICX+Yqv66kxgM0FcWaLWlFLwTAI="),
)


def upgraded(*more: tuple[str, str], asked: Headers = UPGRADE, websocket: bool = True) -> ResponsePlan:
    return accepted(plan(*ANSWER, *more, status=101, asked=asked, websocket=websocket))


@pytest.mark.parametrize("missing", range(len(UPGRADE)))
def test_each_part_of_the_question_is_needed(missing: int) -> None:
    """RFC 6455 4.1: Connection, Upgrade and the version, each once and alone."""
    asked = UPGRADE[:missing] + UPGRADE[missing + 1 :]
    refused(plan(*ANSWER, status=101, asked=asked, websocket=True))
    refused(plan(*ANSWER, status=101, asked=(*UPGRADE, ("sec-websocket-version", "8")), websocket=True))
    refused(plan(*ANSWER, status=101, asked=(*UPGRADE, ("upgrade", "h2c")), websocket=True))


def test_no_upgrade_is_allowed_unless_somebody_says_so() -> None:
    """A plane that leaves it out gets no WebSocket."""
    answer = plan_response(
        RequestHead("GET", "/", UPGRADE), ResponseHead(101, ANSWER), authenticated=False, patterns=None
    )
    refused(answer)


@pytest.mark.parametrize(
    "extensions",
    [
        ("permessage-deflate",),
        ("Permessage-Deflate; server_max_window_bits=10; client_no_context_takeover",),
        ("permessage-deflate", " permessage-deflate\t"),
        ("permessage-deflate, permessage-deflate",),
        ("",),
    ],
)
def test_messages_may_be_deflated(extensions: tuple[str, ...]) -> None:
    """RFC 7692, which we read."""
    upgraded(*(("sec-websocket-extensions", value) for value in extensions))


@pytest.mark.parametrize(
    "extension",
    [
        "x-zip",
        "permessage-deflate, x-zip",
        "permessage-deflate; a, x-zip",
        "permessage-deflate; a=b, x-zip; a=b",
        "\x0cpermessage-deflate",
        "Xpermessage-deflate",
    ],
)
def test_an_extension_that_could_hide_messages_is_refused(extension: str) -> None:
    """Alone, or behind one that could not; every header counts."""
    for headers in (
        (("sec-websocket-extensions", extension),),
        (("sec-websocket-extensions", "permessage-deflate"), ("sec-websocket-extensions", extension)),
    ):
        refused(plan(*ANSWER, *headers, status=101, asked=UPGRADE, websocket=True))


def test_an_upgrade_has_no_body_and_no_length() -> None:
    """What follows is messages (RFC 9110 8.6)."""
    done = upgraded(("content-length", "0"))
    assert "content-length" not in dict(done.headers)
    assert (done.framing, done.scrub_body) == (Framing.NONE, False)
    refused(plan(*ANSWER, ("content-length", "1"), status=101, asked=UPGRADE, websocket=True))


def test_a_secret_in_its_head_is_masked() -> None:
    """As in any other."""
    secret = "sk-proj-0123456789abcdefABCDEF"
    assert PATTERNS.find(secret.encode())
    assert upgraded(("x-echo", secret)).hits == 1
