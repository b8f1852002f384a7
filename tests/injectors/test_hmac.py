"""HMAC signatures: what a verifier that knows the key recomputes is what was sent, or nothing leaves."""

import hashlib
import hmac
from base64 import b64encode
from dataclasses import replace

import pytest

from coatcheck.decision import substitute as core
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.head import BODY_DIGESTS, HOP_BY_HOP, RANGES, UNREADABLE_ANSWERS
from coatcheck.decision.injection import EDITED_BY_PLANES, Injector
from coatcheck.decision.message import Destination, Edits, RequestHead
from coatcheck.decision.policy import Policy
from coatcheck.decision.response import plan_request_for_scrubbing
from coatcheck.decision.search import find, placed
from coatcheck.decision.verdict import Injection
from coatcheck.injectors.body import BodyInjection
from coatcheck.injectors.header import HeaderInjection
from coatcheck.injectors.hmac import HmacInjection, KeyId, Timestamp, TimestampFormat, message_template
from coatcheck.injectors.query import QueryInjection
from coatcheck.injectors.spelling import Wrong
from coatcheck.policy import load_policy
from coatcheck.policy.diff.terms import credential_terms
from coatcheck.policy.file.problem import PolicyError
from coatcheck.request.request_edits import with_connection_edits
from tests.injectors.substitution import HANDLE, OTHER, credential, edits, refused

KEY = "signing-key-0123456789abcdef"
NOW = 1_800_000_000.75
HERE = Destination("https", "api.example.com", 443)
ALL = "{method}\n{path}?{query}\n{host}\n{timestamp}\n{body_sha256}\n{header:content-type}"
FULL = HmacInjection("x-signature", ALL, timestamp=Timestamp("x-timestamp"))


def head(target: str = "/v1/orders?limit=1", body: bool = True, **headers: str) -> RequestHead:
    pairs = {"host": "api.example.com", "content-type": "application/json", "x-signature": HANDLE}
    pairs |= {name.replace("_", "-"): value for name, value in headers.items()}
    return RequestHead("POST", target, tuple(pairs.items()), end_stream=not body)


def run(
    kind: Injector,
    request: RequestHead,
    body: bytes | None = b"{}",
    *,
    handle: str | None = HANDLE,
    now: float = NOW,
    destination: Destination = HERE,
) -> Edits | Deny:
    injections = (Injection(credential(kind), handle),)
    return core.substitute(request, destination, body, injections, {"api": KEY}, now)


def signed(message: bytes, algorithm: str = "sha256") -> bytes:
    return hmac.new(KEY.encode(), message, algorithm).digest()


class TestSignature:
    def test_a_verifier_that_knows_the_key_recomputes_it(self) -> None:
        """Every field as it leaves; the timestamp is ours, whatever the client wrote."""
        result = edits(run(FULL, head(x_timestamp="1")))
        digest = hashlib.sha256(b"{}").hexdigest()
        message = f"POST\n/v1/orders?limit=1\napi.example.com\n1800000000\n{digest}\napplication/json"
        assert dict(result.set_headers) == {
            "x-signature": signed(message.encode()).hex(),
            "x-timestamp": "1800000000",
            "host": "api.example.com",
        }
        assert result.body is None and result.target is None

    @pytest.mark.parametrize(
        ("format_", "text"),
        [
            (TimestampFormat.UNIX, "1800000000"),
            (TimestampFormat.UNIX_MS, "1800000000750"),
            (TimestampFormat.RFC3339, "2027-01-15T08:00:00Z"),
        ],
    )
    def test_the_time_is_written_as_the_verifier_reads_it(self, format_: TimestampFormat, text: str) -> None:
        """Seconds, milliseconds, or a date."""
        kind = HmacInjection("x-signature", "{timestamp}", timestamp=Timestamp("x-timestamp", format_))
        result = dict(edits(run(kind, head(), None)).set_headers)
        assert result == {"x-signature": signed(text.encode()).hex(), "x-timestamp": text}

    def test_the_body_itself_and_the_template_of_the_header(self) -> None:
        """As GitHub signs its webhooks: `sha256=` and the hexadecimal HMAC of the body."""
        policy = one('{header: X-Hub-Signature-256, value: "sha256={signature}", message: "{body}"}')
        kind = policy.credentials["api"].inject
        shown = head(x_hub_signature_256=f"sha256={HANDLE}", x_signature="")
        result = edits(run(kind, shown, b'{"a": 1}'))
        assert dict(result.set_headers) == {
            "x-hub-signature-256": "sha256=" + signed(b'{"a": 1}').hex(),
        }
        assert kind.minted(result) == (signed(b'{"a": 1}').hex(),)

    def test_sha512_and_base64(self) -> None:
        """What crypto exchanges want."""
        policy = one("{header: X-Signature, algorithm: sha512, encoding: base64, message: '{path}'}")
        result = edits(run(policy.credentials["api"].inject, head(), None))
        assert result.set_headers == (("x-signature", b64encode(signed(b"/v1/orders", "sha512")).decode()),)

    def test_a_key_id_takes_the_handles_place(self) -> None:
        """A client that signs by itself has the handle for its key's name; what it signed is replaced."""
        kind = HmacInjection("x-signature", "{path}{header:x-key}", key_id=KeyId("x-key", "public-7"))
        request = head(x_signature="made-with-whatever-key", x_key=HANDLE)
        result = edits(run(kind, request, None))
        signature = signed(b"/v1/orderspublic-7").hex()
        assert dict(result.set_headers) == {"x-signature": signature, "x-key": "public-7"}

    def test_the_host_is_signed_as_it_is_sent(self) -> None:
        """The port where it is not the scheme's own, whatever the client wrote."""
        kind = HmacInjection("x-signature", "{host}")
        result = edits(run(kind, head(host="API.example.com:443"), None))
        assert dict(result.set_headers)["host"] == "api.example.com"
        bare = replace(head(), headers=(("x-signature", HANDLE),))  # HTTP/2 has an :authority instead
        assert dict(edits(run(kind, bare, None)).set_headers)["host"] == "api.example.com"
        elsewhere = Destination("https", "api.example.com", 8443)
        result = edits(run(kind, head(host="api.example.com:8443"), None, destination=elsewhere))
        assert dict(result.set_headers) == {
            "x-signature": signed(b"api.example.com:8443").hex(),
            "host": "api.example.com:8443",
        }

    def test_two_signatures_may_cover_the_host(self) -> None:
        """Both put the same name there."""
        one_, two = (HmacInjection(name, "{host}") for name in ("x-one", "x-two"))
        credentials = [credential(kind, name=kind.header) for kind in (one_, two)]
        injections = (Injection(credentials[0], HANDLE), Injection(credentials[1], OTHER))
        request = head(x_one=HANDLE, x_two=OTHER, x_signature="")
        secrets = {"x-one": KEY, "x-two": KEY}
        result = edits(core.substitute(request, HERE, None, injections, secrets, NOW))
        assert {name for name, _ in result.set_headers} == {"x-one", "x-two", "host"}

    def test_what_another_credential_puts_in_is_covered(self) -> None:
        """It signs last, over the headers and target that the others left."""
        kinds = {
            "sign": replace(FULL, message="{query} {header:x-token}"),
            "token": HeaderInjection("x-token"),
            "q": QueryInjection("key"),
        }
        request = head(f"/v1?key={OTHER}", x_token=OTHER + "t")
        shown = {"sign": HANDLE, "token": OTHER + "t", "q": OTHER}
        credentials = [credential(kind, name=name) for name, kind in kinds.items()]
        injections = tuple(Injection(each, shown[each.name]) for each in credentials)
        secrets = {"sign": KEY, "token": "T" * 20, "q": "Q" * 20}
        result = edits(core.substitute(request, HERE, b"{}", injections, secrets, NOW))
        assert dict(result.set_headers)["x-signature"] == signed(f"key={'Q' * 20} {'T' * 20}".encode()).hex()

    def test_without_a_handle_a_client_may_sign_with_what_it_has(self) -> None:
        """`handle: optional`: its signature, made with the handle for a key, is replaced."""
        request = head(x_signature="deadbeef")
        assert isinstance(run(FULL, request, handle=None), Edits)
        assert refused(run(FULL, request)) is Reason.HANDLE_MISPLACED


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"content_type": None}, Reason.HEADER_FORM_REFUSED),
            ({"content_type": "a\xe9"}, Reason.HEADER_FORM_REFUSED),
            ({"x_signature": None}, Reason.HANDLE_MISSING),
            ({"x_signature": "Bearer " + HANDLE}, Reason.HANDLE_MISPLACED),
            ({"x_signature": OTHER}, Reason.HANDLE_MISPLACED),
            ({"x_other": OTHER}, Reason.HANDLE_MISPLACED),
        ],
    )
    def test_a_header_that_is_missing_or_odd(self, change: dict[str, str | None], reason: Reason) -> None:
        """One to sign, or the handle's own."""
        changed = {name.replace("_", "-"): value for name, value in change.items()}
        kept = [pair for pair in head().headers if pair[0] not in changed]
        kept += [(name, value) for name, value in changed.items() if value is not None]
        assert refused(run(FULL, replace(head(), headers=tuple(kept))), secret=KEY) is reason

    @pytest.mark.parametrize("name", ["x-signature", "x-timestamp", "content-type"])
    def test_a_header_that_stands_twice(self, name: str) -> None:
        """Its reader would take the other one (I7)."""
        request = head(x_timestamp="1")
        twice = replace(request, headers=(*request.headers, (name, "x")))
        assert refused(run(FULL, twice)) is Reason.HEADER_FORM_REFUSED

    def test_a_body_that_is_too_large_or_was_not_buffered(self) -> None:
        """The limit counts for the bytes that are signed; without them nothing is."""
        small = replace(FULL, max_bytes=9)
        assert core.body_limit(head(), (Injection(credential(small), HANDLE),)) == 9
        assert isinstance(run(small, head(), b"x" * 9), Edits)
        assert refused(run(small, head(), b"x" * 10)) is Reason.BODY_TOO_LARGE
        assert refused(run(small, head(), None)) is Reason.PLANE_CANNOT
        bodiless = HmacInjection("x-signature", "{method}", max_bytes=9)
        assert core.body_limit(head(), (Injection(credential(bodiless), HANDLE),)) == 0
        assert core.body_limit(head(body=False), (Injection(credential(small), HANDLE),)) == 0
        assert isinstance(run(small, head(body=False), None), Edits), "no body is the empty one"

    @pytest.mark.parametrize("now", [-1.0, 1e300, float("inf"), float("nan")])
    def test_a_time_that_cannot_be_written(self, now: float) -> None:
        """Rather no request than one with a wrong time."""
        assert refused(run(FULL, head(), now=now)) is Reason.PLANE_CANNOT

    @pytest.mark.parametrize("target", ["/a b", "/a#b", "/é", "/a\tb"])
    def test_a_target_that_is_sent_otherwise_than_written(self, target: str) -> None:
        """What is signed is what must arrive."""
        assert refused(run(FULL, head(target))) is Reason.PATH_FORM_REFUSED

    def test_no_key_and_no_handle_stands_in_what_is_sent(self) -> None:
        """Neither in the edits."""
        result = edits(run(FULL, head()))
        assert KEY not in repr(result) and HANDLE not in repr(result)


class TestHandle:
    @pytest.mark.parametrize(
        ("kind", "headers", "counts"),
        [
            (FULL, (("x-signature", HANDLE),), True),
            (FULL, (("x-signature", f"v1={HANDLE}"),), False),
            (FULL, (("x-other", HANDLE),), False),
            (replace(FULL, template="v1={signature}"), (("x-signature", f"v1={HANDLE}"),), True),
            (replace(FULL, key_id=KeyId("x-key", "k")), (("x-key", HANDLE),), True),
            (replace(FULL, key_id=KeyId("x-key", "k")), (("x-signature", HANDLE),), False),
        ],
    )
    def test_it_counts_in_its_place(
        self, kind: HmacInjection, headers: tuple[tuple[str, str], ...], counts: bool
    ) -> None:
        """In the signature's header, or in the one that names the key."""
        (found,) = find(RequestHead("GET", "/", headers))
        assert (placed(found, credential(kind)) is not None) is counts

    def test_what_a_client_shows_is_where_it_counts(self) -> None:
        """Samples of a policy are tried so."""
        named, dressed = replace(FULL, key_id=KeyId("x-key", "k")), replace(FULL, template="a {signature}")
        for kind in (FULL, named, dressed):
            (found,) = find(kind.shown(RequestHead("GET", "/", ()), HANDLE))
            assert placed(found, credential(kind)) is not None


def one(inject: str) -> Policy:
    text = f"""
version: 1
owner: tests
credentials:
  api:
    secret: memory:secret/api#key
    hosts: [api.example.com]
    inject: {{hmac: {inject}}}
rules:
  - {{name: api, hosts: [api.example.com], methods: [POST], credentials: [api]}}
"""
    return load_policy("one", text.encode())


class TestPolicy:
    def test_all_that_can_be_written(self) -> None:
        """Header names in lower case, defaults where nothing is written."""
        written = one(
            '{header: X-Signature, value: "v1={signature}", algorithm: sha512, encoding: base64,'
            ' message: "{method}\\n{header:X-Date}", timestamp: {header: X-Time, format: rfc3339},'
            " key_id: {header: X-Key, value: k-1}, max: 64KiB}"
        )
        kind = written.credentials["api"].inject
        assert isinstance(kind, HmacInjection)
        assert (kind.header, kind.message) == ("x-signature", "{method}\n{header:x-date}")
        assert kind.timestamp == Timestamp("x-time", TimestampFormat.RFC3339)
        assert kind.key_id == KeyId("x-key", "k-1") and kind.max_bytes == 65_536
        bare = one("{header: X-Signature, message: '{path}'}").credentials["api"].inject
        assert bare == HmacInjection("x-signature", "{path}")

    @pytest.mark.parametrize(
        ("inject", "message"),
        [
            ("{header: X-Signature}", '"message" is missing; add `message: '),
            ("{header: X-Signature, message: hello}", "the message names nothing of the request"),
            ("{header: X-Signature, message: '{pth}'}", "there is no field {pth}"),
            ("{header: X-Signature, message: '{path'}", "the message is printable ASCII"),
            ("{header: X-Signature, message: '{timestamp}'}", "no header sends it"),
            ("{header: X-Signature, message: '{header:Host}'}", "write {host}"),
            ("{header: X-Signature, message: '{header:Accept-Encoding}'}", "may be edited on its way"),
            ("{header: X-Signature, message: '{header:Accept-Charset}'}", "leave it out of the message"),
            ("{header: X-Signature, message: '{header:Content-Digest}'}", "write {body_sha256}"),
            ("{header: X-Signature, message: '{header:X-Signature}'}", "the signature's own header"),
            ("{header: Host, message: '{path}'}", "Host cannot carry a secret"),
            ("{header: X-Signature, value: v1, message: '{path}'}", "needs {signature} exactly once"),
            ("{header: X-Signature, algorithm: md5, message: '{path}'}", '"md5" is not a known word'),
            (
                "{header: X-A, message: '{timestamp}', timestamp: {header: X-A}}",
                "signature, timestamp and key have one header",
            ),
            ("{header: X-A, message: '{path}', timestamp: {headers: X-B}}", 'unknown key "headers"'),
        ],
    )
    def test_what_cannot_work_is_said_when_the_file_is_read(self, inject: str, message: str) -> None:
        """With what to write instead."""
        with pytest.raises(PolicyError) as refused_:
            one(inject)
        assert message in str(refused_.value)

    @pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2.0"])
    @pytest.mark.parametrize("secrets", [True, False])
    @pytest.mark.parametrize("upgrade", [True, False])
    def test_no_header_that_is_removed_or_edited_later_can_be_signed(
        self, version: str, secrets: bool, upgrade: bool
    ) -> None:
        """What is signed is what is sent, whichever sets the edits are made from."""
        names = {*HOP_BY_HOP, *UNREADABLE_ANSWERS, *RANGES, *BODY_DIGESTS, *EDITED_BY_PLANES, "x-kept"}
        names = names if upgrade else names - {"upgrade"}
        request = RequestHead("POST", "/", (("content-type", "application/json"),))
        request = replace(request, http_version=version)
        request = replace(request, headers=(*request.headers, *((name, "a") for name in sorted(names))))
        form = credential(BodyInjection("token"), name="form")
        body = b'{"token": "%s"}' % HANDLE.encode()
        put_in = edits(
            core.substitute(request, HERE, body, (Injection(form, HANDLE),), {"form": "f" * 32}, NOW)
        )
        scrubbing = plan_request_for_scrubbing(request, secrets=secrets, compression=False)
        left = with_connection_edits(request, put_in, scrubbing)
        changed = {name for name, _ in left.set_headers} | set(left.remove_headers)
        assert changed > BODY_DIGESTS | UNREADABLE_ANSWERS and "x-kept" not in changed
        for name in changed:
            with pytest.raises(Wrong, match="cannot be signed"):
                message_template(f"{{header:{name}}}")

    def test_a_difference_is_told(self) -> None:
        """A larger body widens; another message, form, time or key changes."""
        old = one("{header: X-S, message: '{body}'}").credentials["api"]
        new = one("{header: X-S, message: '{path}{body}', max: 2MiB, encoding: base64}").credentials["api"]
        assert {(term.direction.value, term.what) for term in credential_terms(old, new)} == {
            ("changes", "the signed message"),
            ("changes", "the form of the signature"),
            ("widens", "the size of bodies that are signed"),
        }
