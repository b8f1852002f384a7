"""What comes back for one request loses every secret of its session."""

import gzip

import pytest

from coatcheck.decision.denial import Deny
from coatcheck.decision.message import Headers, RequestHead, ResponseHead
from coatcheck.decision.response import ResponsePlan
from coatcheck.request.response import Answer
from coatcheck.request.served_secrets import SessionSecrets
from tests.known_secrets import known_secret

FIRST, SECOND = known_secret("served first"), known_secret("served later")


def answer(secrets: SessionSecrets, *headers: tuple[str, str], gets_secrets: bool = True) -> Answer:
    made = Answer(RequestHead("GET", "/", ()), "a", secrets, lambda: gets_secrets)
    response = ResponseHead(200, headers)
    plan = made.begin(response, injected=False, keep_set_cookie=True, websocket=False, end_stream=False)
    assert isinstance(plan, ResponsePlan)
    return made


def text(out: list[bytes] | Deny) -> bytes:
    assert not isinstance(out, Deny)
    return b"".join(out)


def test_a_secret_that_is_served_in_the_middle_is_masked_from_then_on() -> None:
    """An upstream that shows one client's requests to another must not show them to the sandbox."""
    secrets = SessionSecrets()
    made = answer(secrets)
    assert text(made.feed(b"before ")) == b"before "
    secrets.add("a", FIRST, "")
    # A line's end begins no secret: nothing is held back when the second one comes.
    assert text(made.feed(f"{FIRST}\n".encode())) == b"*" * len(FIRST) + b"\n"
    secrets.add("a", SECOND, "")
    both = made.feed(f"{FIRST} {SECOND}\n".encode())
    assert text(both) == b"*" * len(FIRST) + b" " + b"*" * len(SECOND) + b"\n"
    assert text(made.finish()) == b""
    assert made.hits == 3


def test_a_secret_that_is_served_in_the_middle_of_an_echo_is_masked_whole() -> None:
    """What was held back for the secrets from before is looked at again for the new one."""
    secrets = SessionSecrets()
    secrets.add("a", FIRST, "")
    made = answer(secrets)
    out = text(made.feed(SECOND[:8].encode()))
    secrets.add("a", SECOND, "")
    out += text(made.feed(SECOND[8:].encode())) + text(made.finish())
    assert out == b"*" * len(SECOND)


def test_a_coded_stream_from_before_cannot_go_on_where_secrets_go() -> None:
    """Its coding cannot be undone from the middle, so its end is not clean (I3)."""
    utf_16 = ("content-type", "text/plain; charset=utf-16")
    for gets_secrets, header in ((True, ("content-encoding", "gzip")), (True, utf_16), (False, utf_16)):
        secrets = SessionSecrets()
        made = answer(secrets, header, gets_secrets=gets_secrets)
        secrets.add("a", FIRST, "")
        assert isinstance(made.feed(gzip.compress(b"x")), Deny) is gets_secrets


def test_trailers_and_single_pieces_lose_it_too() -> None:
    """gRPC's message, a ping's payload."""
    secrets = SessionSecrets()
    made = answer(secrets)
    secrets.add("a", FIRST, "")
    assert made.whole(FIRST.encode()) == b"*" * len(FIRST)
    trailers: Headers = (("grpc-message", FIRST),)
    assert made.trailers(trailers) == (("grpc-message", "*" * len(FIRST)),)


def test_another_sessions_secrets_are_not_looked_for() -> None:
    """Masking them would tell the sandbox what they are."""
    secrets = SessionSecrets()
    secrets.add("b", FIRST, "")
    assert text(answer(secrets).feed(FIRST.encode())) == FIRST.encode()


def test_its_own_signature_is_masked_to_the_end_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once later requests have pushed it out of what the whole session's answers lose."""
    monkeypatch.setattr(SessionSecrets, "MINTED", 1)
    secrets = SessionSecrets()
    own = secrets.add_minted("a", "5" * 64)
    head = RequestHead("GET", "/", ())
    made, other = (Answer(head, "a", secrets, lambda: True, minted) for minted in (own, None))
    assert made.whole(b"5" * 64) == other.whole(b"5" * 64) == b"*" * 64
    secrets.add_minted("a", "6" * 64)
    assert made.whole(b"5" * 64 + b"6" * 64) == b"*" * 128
    assert other.whole(b"5" * 64) == b"5" * 64
