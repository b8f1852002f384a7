"""Every refusal has words for a person, and none of them is the provider's or the request's."""

import re

from coatcheck.control.page.openid_refusal import WORDS, OpenIdRefusal, OpenIdRefused


def test_each_says_what_happened_and_what_to_do_next() -> None:
    """And its name fits behind `#`, as the page reads it."""
    assert set(WORDS) == set(OpenIdRefusal)
    for reason, (message, hint) in WORDS.items():
        assert re.fullmatch(r"\w{1,20}", reason) and message[0].islower() and hint.endswith(".")


def test_a_detail_is_cut() -> None:
    """A provider's address may have any length; the log's line has not."""
    refused = OpenIdRefused(OpenIdRefusal.PROVIDER, "x" * 10_000)
    assert len(refused.detail) == 500 and len(str(refused)) < 600
