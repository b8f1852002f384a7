"""A handle in a body: its field changes and nothing else, or the body is refused."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Edits, Headers
from coatcheck.decision.substitute import body_limit
from coatcheck.decision.verdict import Injection
from coatcheck.injectors.body import MOST_CONTAINERS, BodyInjection
from coatcheck.injectors.header import HeaderInjection
from tests.injectors.substitution import (
    FORM,
    HANDLE,
    JSON,
    OTHER,
    SECRET,
    credential,
    edits,
    refused,
    request,
    run,
    substitute,
)


class TestBody:
    KIND = BodyInjection("auth.token")

    def test_only_the_string_in_the_json_field_changes(self) -> None:
        """Blanks, order, escapes and number forms of the rest keep their bytes."""
        before = '{ "n": 1.50e3,\r\n "é": "\\u00e9", "auth" : {"x":[1,2], "token": "%s"} }\n'
        secret = 'quote" back\\slash ü 0123'
        result = edits(
            run(self.KIND, request(headers=JSON, body=True), (before % HANDLE).encode(), secret=secret)
        )
        assert result.body == (before % json.dumps(secret)[1:-1]).encode()
        assert json.loads(result.body)["auth"]["token"] == secret

    def test_a_number_in_the_path_selects_from_a_list(self) -> None:
        """`keys.1` is the second of `keys`."""
        body = json.dumps({"keys": ["a", HANDLE]}).encode()
        result = edits(run(BodyInjection("keys.1"), request(headers=JSON, body=True), body))
        assert result.body is not None and json.loads(result.body) == {"keys": ["a", SECRET]}
        for other in ("keys.2", "keys.x", "keys.-1", "keys.²", "keys.1.0"):
            absent = run(BodyInjection(other), request(headers=JSON, body=True), body)
            assert refused(absent) is Reason.HANDLE_MISSING

    def test_a_look_alike_elsewhere_is_an_alarm(self) -> None:
        """The field says the handle by an escape, and a place that would be replaced says it plainly."""
        body = f'{{"auth":{{"token":"\\u0063{HANDLE[1:]}"}},"note":"{HANDLE}"}}'.encode()
        result = run(self.KIND, request(headers=JSON, body=True), body)
        assert refused(result) is Reason.HANDLE_MISPLACED
        assert isinstance(result, Deny) and result.alarm

    def test_so_many_objects_and_lists_and_not_one_more(self) -> None:
        """Of both kinds together."""
        for more, accepted in ((0, True), (1, False)):
            lists = MOST_CONTAINERS // 2 - 2 + more
            body = f'{{"t":"{HANDLE}","x":[{"[]," * lists}{"{}," * (MOST_CONTAINERS // 2)}1]}}'.encode()
            assert body.count(b"{") + body.count(b"[") == MOST_CONTAINERS + more
            result = run(BodyInjection("t"), request(headers=JSON, body=True), body)
            assert isinstance(result, Edits) if accepted else refused(result) is Reason.BODY_UNREADABLE

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (f'{{"auth":{{"token":"x"}},"note":"{HANDLE}"}}', Reason.HANDLE_MISPLACED),
            (f'{{"auth":{{"token":"{HANDLE}"}},"note":"{HANDLE}"}}', Reason.HANDLE_MISPLACED),
            (f'{{"auth":{{"token":"\\u0063{HANDLE[1:]}"}},"note":"{HANDLE}"}}', Reason.HANDLE_MISPLACED),
            (f'{{"auth":{{"token":"\\u0063{HANDLE[1:]}"}}}}', Reason.HANDLE_MISPLACED),
            (f'{{"auth":{{"token":"{HANDLE}","token":"x"}}}}', Reason.BODY_UNREADABLE),
            (f'{{"auth":{{"token":"x","token":"{HANDLE}"}}}}', Reason.BODY_UNREADABLE),
            (f'{{"a":NaN,"auth":{{"token":"{HANDLE}"}}}}', Reason.BODY_UNREADABLE),
            (f'\ufeff{{"auth":{{"token":"{HANDLE}"}}}}', Reason.BODY_UNREADABLE),
            (f'{{"auth":{{"token":"{HANDLE}"}}}} x', Reason.BODY_UNREADABLE),
            ('{"auth":{}}', Reason.HANDLE_MISSING),
            ("[]", Reason.HANDLE_MISSING),
            ('["auth"]', Reason.HANDLE_MISSING),
            ('{"auth":"token"}', Reason.HANDLE_MISSING),
            ("[" * 40_000 + "]" * 40_000, Reason.BODY_UNREADABLE),
            ("[" + "[]," * 60_000 + "1]", Reason.BODY_UNREADABLE),
            ('{"auth":' + "9" * 5_000 + "}", Reason.BODY_UNREADABLE),
        ],
    )
    def test_json_that_can_be_read_twice_is_refused(self, body: str, reason: Reason) -> None:
        """Duplicate keys, escaped look-alikes, non-JSON, depth and size that would cost us."""
        assert refused(run(self.KIND, request(headers=JSON, body=True), body.encode())) is reason

    def test_a_form_field_changes_and_the_rest_keeps_its_bytes(self) -> None:
        """Slack's form: `token=…` among others; handles elsewhere in a body are inert text (I4)."""
        body = f"a=%2f+b&token={HANDLE}&text=mine+is+{OTHER}".encode()
        result = edits(run(BodyInjection("token"), request(headers=FORM, body=True), body))
        assert result.body == f"a=%2f+b&token={quote(SECRET, safe='')}&text=mine+is+{OTHER}".encode()

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (f"token=x&note={HANDLE}", Reason.HANDLE_MISPLACED),
            (f"token={HANDLE}&token=x", Reason.HANDLE_MISPLACED),
            (f"note={HANDLE}", Reason.HANDLE_MISSING),
        ],
    )
    def test_a_form_whose_field_is_not_the_handle_once_is_refused(self, body: str, reason: Reason) -> None:
        """The secret goes nowhere else, and for nothing else."""
        result = run(BodyInjection("token"), request(headers=FORM, body=True), body.encode())
        assert refused(result) is reason

    def test_a_form_of_other_characters_is_refused(self) -> None:
        """What they mean is not said (WHATWG URL, 5.1)."""
        body = f"a=é&token={HANDLE}".encode()
        result = run(BodyInjection("token"), request(headers=FORM, body=True), body)
        assert refused(result) is Reason.BODY_UNREADABLE

    @pytest.mark.parametrize(
        ("headers", "reason"),
        [
            ((), Reason.HEADER_FORM_REFUSED),
            (JSON + JSON, Reason.HEADER_FORM_REFUSED),
            ((("content-type", "text/plain"),), Reason.BODY_UNREADABLE),
            ((("content-type", "application/json; charset=utf-7"),), Reason.BODY_UNREADABLE),
            ((("content-type", "application/json; charset*=utf-8''utf-7"),), Reason.BODY_UNREADABLE),
            ((("content-type", "application/vnd.api+json"),), Reason.BODY_UNREADABLE),
            ((*JSON, ("content-encoding", "gzip")), Reason.BODY_UNREADABLE),
            ((*JSON, ("content-encoding", "identity"), ("content-encoding", "br")), Reason.BODY_UNREADABLE),
        ],
    )
    def test_a_body_that_is_not_plainly_what_it_says_is_refused(
        self, headers: Headers, reason: Reason
    ) -> None:
        """One content type, one of the credential's, UTF-8 and not compressed."""
        body = json.dumps({"auth": {"token": HANDLE}}).encode()
        assert refused(run(self.KIND, request(headers=headers, body=True), body)) is reason

    @pytest.mark.parametrize(
        "headers",
        [
            (("content-type", 'Application/JSON ; profile=x; Charset="UTF-8"'),),
            (*JSON, ("content-encoding", " Identity"), ("content-encoding", "")),
        ],
    )
    def test_a_body_may_say_the_same_at_length(self, headers: Headers) -> None:
        """Parameters that change no reading, and no coding by name."""
        body = json.dumps({"auth": {"token": HANDLE}}).encode()
        assert isinstance(run(self.KIND, request(headers=headers, body=True), body), Edits)

    def test_a_media_type_counts_that_the_credential_names_and_that_is_json_or_a_form(self) -> None:
        """Any `+json` (RFC 6839, 3.1) is read as JSON; nothing else is read, whatever a policy says."""
        body = json.dumps({"t": HANDLE}).encode()
        for media, accepted in (("application/vnd.api+json", True), ("text/plain", False)):
            kind = BodyInjection("t", frozenset({media}))
            result = run(kind, request(headers=(("content-type", media),), body=True), body)
            assert isinstance(result, Edits) if accepted else refused(result) is Reason.BODY_UNREADABLE

    def test_bodies_over_the_limit_missing_or_not_buffered_are_refused(self) -> None:
        """The credential's `max_bytes` is what a plane buffers; without the body nothing is sent."""
        small, head = BodyInjection("t", max_bytes=9), request(headers=JSON, body=True)
        assert body_limit(head, (Injection(credential(small), HANDLE),)) == 9
        assert refused(run(small, head, b'{"t":"xx"}')) is Reason.BODY_TOO_LARGE
        assert refused(run(small, head, None)) is Reason.PLANE_CANNOT
        assert refused(run(small, head, b"")) is Reason.HANDLE_MISSING
        assert refused(run(small, request(headers=JSON), None)) is Reason.HANDLE_MISSING
        assert refused(run(small, head, b'{"t":1}', handle=None)) is Reason.HANDLE_MISSING
        body = json.dumps({"t": HANDLE}).encode()
        assert isinstance(run(BodyInjection("t", max_bytes=len(body)), head, body), Edits)

    def test_the_smallest_limit_of_several_credentials_counts(self) -> None:
        """And a plane that needs no body buffers none."""
        head = request(headers=JSON, body=True)
        kinds = (BodyInjection("a", max_bytes=9), HeaderInjection("x-key"), BodyInjection("b", max_bytes=7))
        assert body_limit(head, tuple(Injection(credential(kind), HANDLE) for kind in kinds)) == 7
        assert body_limit(head, (Injection(credential(kinds[1]), HANDLE),)) == body_limit(head, ()) == 0

    def test_two_credentials_in_one_body_are_both_put_in(self) -> None:
        """The second goes into what the first has left."""
        pair = tuple(
            Injection(credential(BodyInjection(name), name=name), handle)
            for name, handle in (("a", HANDLE), ("b", OTHER))
        )
        body = json.dumps({"a": HANDLE, "b": OTHER}).encode()
        head = request(headers=JSON, body=True)
        result = edits(substitute(head, body, pair, {"a": "A" * 20, "b": "B" * 20}))
        assert result.body == json.dumps({"a": "A" * 20, "b": "B" * 20}).encode()

    def test_digests_of_the_old_body_go(self) -> None:
        """A Content-MD5 that no longer fits would fail upstream, or be believed."""
        head = request(headers=(*JSON, ("content-md5", "eHg="), ("content-length", "80")), body=True)
        result = edits(run(BodyInjection("t"), head, json.dumps({"t": HANDLE}).encode()))
        assert result.remove_headers == ("content-md5",)
        head = request(headers=(*head.headers, ("x-key", HANDLE)), body=True)
        assert edits(run(HeaderInjection("x-key"), head)).remove_headers == ()


@given(
    st.text(st.characters(codec="utf-8"), max_size=30), st.text(max_size=30).filter(lambda t: HANDLE not in t)
)
def test_json_keeps_every_other_value(note: str, tail: str) -> None:
    """Any text beside the field survives to the byte, and the secret is only in its field."""
    for ascii_only in (True, False):
        text = json.dumps({"note": note, "auth": {"token": HANDLE}, "tail": [tail]}, ensure_ascii=ascii_only)
        body = text.encode("utf-8", "surrogatepass")
        result = run(BodyInjection("auth.token"), request(headers=JSON, body=True), body)
        if isinstance(result, Deny):
            assert result.reason is Reason.BODY_UNREADABLE  # a lone surrogate is not UTF-8
            continue
        assert result.body == text.replace(HANDLE, json.dumps(SECRET)[1:-1]).encode()
