"""A handle in a query or a path: one value or one segment changes, and no byte beside it."""

from dataclasses import replace
from urllib.parse import quote

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.decision.verdict import Injection
from coatcheck.injectors.path import PathInjection
from coatcheck.injectors.query import QueryInjection
from tests.injectors.substitution import (
    HANDLE,
    OTHER,
    SECRET,
    credential,
    edits,
    refused,
    request,
    run,
    substitute,
)


class TestQuery:
    KEY = QueryInjection("key")

    def test_only_the_one_value_changes(self) -> None:
        """Order, odd escapes and empty pairs of the others keep their bytes; the secret is encoded."""
        head = request(f"/v1/x%20y?a=%2f+b&&key={HANDLE}&a=2&%zz=é")
        assert (
            edits(run(self.KEY, head)).target == f"/v1/x%20y?a=%2f+b&&key={quote(SECRET, safe='')}&a=2&%zz=é"
        )

    def test_a_percent_encoded_handle_is_the_handle(self) -> None:
        """Clients may escape more than they must."""
        encoded = "".join(f"%{ord(char):02X}" for char in HANDLE)
        assert (
            edits(run(self.KEY, request(f"/?k%65y={encoded}"))).target == f"/?k%65y={quote(SECRET, safe='')}"
        )

    def test_a_query_begins_at_the_first_question_mark(self) -> None:
        """Later ones are text (RFC 3986, 3.4)."""
        result = edits(run(self.KEY, request(f"/x?key={HANDLE}&a=?")))
        assert result.target == f"/x?key={quote(SECRET, safe='')}&a=?"

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            (f"/?key={HANDLE}&key=mine", Reason.HANDLE_MISPLACED),
            (f"/?key=mine&k%65y={HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE}x", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE};x=1", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE}#f", Reason.HANDLE_MISPLACED),
            (f"/?Key={HANDLE}", Reason.HANDLE_MISSING),
            (f"/{HANDLE}?key={HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE}&log={OTHER}", Reason.HANDLE_MISPLACED),
            (f"/?key={HANDLE}&log=%63{HANDLE[1:]}", Reason.HANDLE_MISPLACED),
            (f"/key={HANDLE}?", Reason.HANDLE_MISSING),
        ],
    )
    def test_two_readings_and_second_handles_are_refused(self, target: str, reason: Reason) -> None:
        """Exactly one parameter of the name, exactly the handle, and no handle anywhere else."""
        assert refused(run(self.KEY, request(target))) is reason

    @pytest.mark.parametrize(
        ("target", "want"), [("/a", "/a?key="), ("/a?b=1", "/a?b=1&key="), ("/?key=x", "/?key=")]
    )
    def test_without_a_handle_the_parameter_is_set_or_added(self, target: str, want: str) -> None:
        """`handle_required: false` adds what the client left out."""
        assert edits(run(self.KEY, request(target), handle=None)).target == want + quote(SECRET, safe="")


class TestPath:
    def test_one_segment_changes_and_the_colon_of_a_bot_token_stays(self) -> None:
        """Telegram's form: `/bot<token>/sendMessage`."""
        token = "123456:AAbbCCddEEff-_xyz"
        result = edits(run(PathInjection("bot"), request(f"/bot{HANDLE}/sendMessage?a=%2F"), secret=token))
        assert result.target == f"/bot{token}/sendMessage?a=%2F"

    def test_a_secret_cannot_make_a_second_segment_or_a_query(self) -> None:
        """Slash, question mark, hash and percent are encoded."""
        secret = "0123456789abcdef/../?x#y%00"
        result = edits(run(PathInjection(), request(f"/{HANDLE}/x"), secret=secret))
        assert result.target == "/0123456789abcdef%2F..%2F%3Fx%23y%2500/x"

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            (f"/bot{HANDLE}/bot{HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/{HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/xbot{HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/bot{HANDLE}?again={HANDLE}", Reason.HANDLE_MISPLACED),
            (f"/?bot{HANDLE}", Reason.HANDLE_MISSING),
            (f"/?a=/bot{HANDLE}?", Reason.HANDLE_MISSING),
        ],
    )
    def test_anything_but_one_whole_segment_is_refused(self, target: str, reason: Reason) -> None:
        """Prefix and handle fill one segment, once."""
        assert refused(run(PathInjection("bot"), request(target))) is reason

    def test_without_a_handle_nothing_is_put_in(self) -> None:
        """No segment could be meant."""
        assert refused(run(PathInjection("bot"), request("/bot/x"), handle=None)) is Reason.HANDLE_MISSING

    @pytest.mark.parametrize("dots", [".", ".."])
    def test_a_secret_of_dots_is_unusable(self, dots: str) -> None:
        """`..` would climb."""
        path = replace(credential(PathInjection()), scrub=False)
        result = substitute(request(f"/a/{HANDLE}"), None, (Injection(path, HANDLE),), {"api": dots})
        assert refused(result, secret="") is Reason.SECRET_UNUSABLE
