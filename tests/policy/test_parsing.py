"""The process that parses policies: the same answers, each content once, and no wait for a request."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from coatcheck.decision.policy import Policy
from coatcheck.policy import parsing
from coatcheck.policy.file.loading import load_policy, parse_here
from coatcheck.policy.file.problem import PolicyError
from coatcheck.policy.parsing import ParserFailed, PolicyParser
from tests.decision.cost import LINEAR, growth

REPOSITORY = Path(__file__).parents[2]


def rules(count: int, host: str = "h{0}.example.org") -> bytes:
    """A policy of so many rules."""
    head = b"version: 1\nowner: tests\nrules:\n"
    rule = "  - {{name: r{0}, hosts: [" + host + "], methods: [GET], paths: [/p{0}/**]}}\n"
    return head + "".join(rule.format(number) for number in range(count)).encode()


def test_it_answers_as_a_parser_in_this_process() -> None:
    """Every policy that we ship or test with, injectors and all; and what is wrong with a bad one."""
    places = ("policies", "tests/corpus/policies")
    files = {file.stem: file.read_bytes() for place in places for file in (REPOSITORY / place).glob("*.yaml")}
    files |= {"bad": b"rules: none\n", "many": rules(3 * parsing.PIECE + 1)}
    elsewhere, here = PolicyParser()(files), parse_here(files)
    assert list(elsewhere) == list(here)
    assert len(here) > 15
    for name, found in here.items():
        other = elsewhere[name]
        if isinstance(found, Policy):
            assert isinstance(other, Policy)
            assert other == found
            assert other.index == found.index
        else:
            assert isinstance(other, PolicyError) and other.problems == found.problems


def test_what_did_not_change_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Good or bad: a broken file that is left in place costs nothing."""
    parser = PolicyParser()
    files = {"good": rules(1), "bad": b"rules: none\n"}
    first = parser(files)
    assert parser.parsed == 2 and isinstance(first["bad"], PolicyError)
    with monkeypatch.context() as patch:
        patch.setattr(parsing, "_elsewhere", lambda _: pytest.fail("a process was started"))
        assert parser(files) == first
        assert list(parser({"good": rules(1)})) == ["good"]
    assert isinstance(parser({"good": rules(2)})["good"], Policy)
    assert parser.parsed == 3
    parser(files)
    assert parser.parsed == 5, "what a call left out was forgotten"


def test_a_process_that_ends_without_an_answer_says_nothing_about_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is no verdict on them: nothing is remembered, and they are read again."""
    parser = PolicyParser()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/true")
        with pytest.raises(ParserFailed):
            parser({"good": rules(1)})
    with monkeypatch.context() as patch:
        patch.setattr(parsing, "PARSE_SECONDS", 0.01)
        with pytest.raises(ParserFailed):
            parser({"good": rules(1)})
    with monkeypatch.context() as patch:
        patch.setattr(parsing, "__version__", "0.0.0")
        with pytest.raises(ParserFailed, match="restart the daemon"):
            parser({"good": rules(1)})
    assert isinstance(parser({"good": rules(1)})["good"], Policy)


async def test_the_event_loop_goes_on_meanwhile() -> None:
    """Five thousand rules take this process seconds of parsing; no turn of the loop waits for that."""
    parsing_it = asyncio.create_task(asyncio.to_thread(PolicyParser(), {"large": rules(5000)}))
    waits = []
    while not parsing_it.done():
        before = time.thread_time()
        await asyncio.sleep(0.005)
        waits.append(time.thread_time() - before)
    assert isinstance((await parsing_it)["large"], Policy)
    assert len(waits) > 20


@pytest.mark.parametrize("host", ["h{0}.example.org", "one.example.org", '"*.h{0}.example.org"'])
def test_the_time_to_load_a_policy_grows_with_its_rules(host: str) -> None:
    """Rules of different hosts, rules of one host: nothing compares each with every other."""
    assert growth(lambda count: load(rules(count, host)), 40) <= LINEAR


def load(data: bytes) -> None:
    load_policy("p", data)
