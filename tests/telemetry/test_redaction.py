"""The last look before a line is written."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.telemetry.redaction import mask, mask_bytes_literals, mask_handles, printable


@given(st.text())
def test_printable_is_one_line_and_keeps_what_was_printable(text: str) -> None:
    """Whatever comes in, what goes out is printable; what was printable is as it was."""
    assert printable(text).isprintable()
    assert not text.isprintable() or printable(text) == text


def test_ordinary_messages_are_left_alone() -> None:
    """Masking that ate normal words would be switched off by the first operator who needs the log."""
    for text in (
        "policy platform loaded, sha256 " + "ab" * 32,
        "session s-7f3a9c11 revoked by uid 1000",
        "cannot reach https://vault.example.com:8200: connection refused",
        "the basic idea: a bearer of bad news",
    ):
        assert mask(mask_bytes_literals(text)) == text


def test_a_handle_is_masked_wherever_it_stands() -> None:
    """Inside a wrapping shape, in a URL, next to punctuation."""
    handle = "cch_" + "eyJhbGciOiJFZERTQSJ9.e30.c2ln-_x"
    assert mask_handles(f"sk-ant-{handle}, /bot{handle}/x") == "sk-ant-cch_[masked], /botcch_[masked]/x"


@pytest.mark.parametrize(
    "text", ["b'" + "\\" * 200_000, "://" + "a" * 200_000, "https://" + "a?" * 100_000, "cookie" * 40_000,
             "Basic " * 40_000, "eyJ" * 70_000, "sk-" * 70_000, "b'" * 100_000]
)  # fmt: skip
def test_no_text_makes_the_patterns_slow(text: str) -> None:
    """Hostile text costs time in proportion to its length (seconds here would be minutes if squared)."""
    started = time.thread_time()
    mask_bytes_literals(mask(text))
    assert time.thread_time() - started < 20
