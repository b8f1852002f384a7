"""What comes back for one request loses every secret of its tenant."""

import gzip

import pytest

from coatcheck.decision.denial import Deny
from coatcheck.decision.message import Headers, RequestHead, ResponseHead
from coatcheck.decision.response import ResponsePlan
from coatcheck.policy import load_policy
from coatcheck.request.known_secrets import KnownSecrets
from coatcheck.request.response import Answer
from tests.known_secrets import known_secret
from tests.request.known_world import NEW, OLD, World
from tests.request.known_world import world as world

FREE = b"""
version: 1
owner: tests
rules: [{name: pages, hosts: [example.org], methods: [GET]}]
"""
"""A policy without a credential."""
HEAD = RequestHead("GET", "/", ())


def begun(made: Answer, *headers: tuple[str, str]) -> Answer:
    response = ResponseHead(200, headers)
    plan = made.begin(response, authenticated=False, keep_set_cookie=True, websocket=False, end_stream=False)
    assert isinstance(plan, ResponsePlan)
    return made


async def answer(world: World, *headers: tuple[str, str]) -> Answer:
    session = await world.learned(world.open())
    return begun(Answer(HEAD, session, world.known), *headers)


async def rotate(world: World, value: str) -> None:
    world.shelf.versions["one"].append(value)
    world.clock.advance(61)
    await world.store.fetch(world.state.policies["one"].credentials["one"].secret)


def text(out: list[bytes] | Deny) -> bytes:
    assert not isinstance(out, Deny)
    return b"".join(out)


async def test_a_secret_that_is_rotated_in_the_middle_is_masked_from_then_on(world: World) -> None:
    """An upstream that shows one client's requests to another must not show them to the sandbox."""
    made = await answer(world)
    # A line's end begins no secret: nothing is held back when the next value comes.
    assert text(made.feed(f"{OLD}\n".encode())) == b"*" * len(OLD) + b"\n"
    later = known_secret("rotated in the middle")
    await rotate(world, later)
    both = made.feed(f"{NEW} {later}\n".encode())
    assert text(both) == b"*" * len(NEW) + b" " + b"*" * len(later) + b"\n"
    assert text(made.finish()) == b""
    assert made.hits == 3


async def test_a_secret_that_is_rotated_in_the_middle_of_an_echo_is_masked_whole(world: World) -> None:
    """What was held back for the values from before is looked at again for the new one."""
    made = await answer(world)
    later = known_secret("rotated in an echo")
    out = text(made.feed(later[:8].encode()))
    await rotate(world, later)
    out += text(made.feed(later[8:].encode())) + text(made.finish())
    assert out == b"*" * len(later)


async def early(world: World, *headers: tuple[str, str]) -> Answer:
    """An answer that began while the tenant had no secret; now it has some."""
    one = world.state.policies["one"]
    world.state.swap_policies({"one": load_policy("one", FREE)})
    session = await world.learned(world.open())
    made = begun(Answer(HEAD, session, world.known), *headers)
    assert text(made.feed(b"")) == b""
    world.state.swap_policies({"one": one})
    await world.known.learn(session)
    return made


async def test_a_coded_stream_from_before_the_first_secret_is_searched(world: World) -> None:
    """It is decoded from its first byte on, whether there is anything to look for or not."""
    made = await early(world, ("content-encoding", "gzip"))
    echo = text(made.feed(gzip.compress(OLD.encode()))) + text(made.finish())
    assert echo == b"*" * len(OLD)


@pytest.mark.parametrize(
    "header", [("content-encoding", "unheard-of"), ("content-type", "text/plain; charset=utf-16")]
)
async def test_a_stream_that_cannot_be_searched_ends_with_the_first_secret(
    world: World, header: tuple[str, str]
) -> None:
    """Without a clean end (I3). Until then there is nothing that it could show."""
    made = await early(world, header)
    assert isinstance(made.feed(OLD.encode()), Deny)


async def test_trailers_and_single_pieces_lose_it_too(world: World) -> None:
    """gRPC's message, a ping's payload."""
    made = await answer(world)
    assert made.whole(OLD.encode()) == b"*" * len(OLD)
    trailers: Headers = (("grpc-message", OLD),)
    assert made.trailers(trailers) == (("grpc-message", "*" * len(OLD)),)


async def test_a_rule_that_says_so_is_not_searched(world: World) -> None:
    """`scrub: off`: head, body and coding pass as they are."""
    session = await world.learned(world.open())
    made = Answer(HEAD, session, None)
    response = ResponseHead(200, (("x-echo", OLD), ("content-encoding", "gzip"), ("accept-ranges", "bytes")))
    plan = made.begin(response, authenticated=True, keep_set_cookie=True, websocket=False, end_stream=False)
    assert isinstance(plan, ResponsePlan)
    assert plan.headers == response.headers
    assert text(made.feed(OLD.encode())) == OLD.encode()


async def test_its_own_signature_is_masked_to_the_end_of_the_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once later requests have pushed it out of what the whole session's answers lose."""
    monkeypatch.setattr(KnownSecrets, "MINTED", 1)
    session = await world.learned(world.open())
    own = world.known.add_minted(session.id, "5" * 64)
    made, other = (Answer(HEAD, session, world.known, minted) for minted in (own, None))
    assert made.whole(b"5" * 64) == other.whole(b"5" * 64) == b"*" * 64
    world.known.add_minted(session.id, "6" * 64)
    assert made.whole(b"5" * 64 + b"6" * 64) == b"*" * 128
    assert other.whole(b"5" * 64) == b"5" * 64
