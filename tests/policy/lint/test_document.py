"""What the linter finds in one part of a file, and where it stays silent."""

from datetime import date

import pytest

from coatcheck.policy.file.codes import Code
from coatcheck.policy.file.models import Document
from coatcheck.policy.file.problem import Location
from coatcheck.policy.lint.document import lint_document

LIMITED = {"requests": "60/minute"}
TODAY = date(2027, 1, 1)


def found(
    rule: dict[str, object] | None = None,
    credential: dict[str, object] | None = None,
    owner: str = "security",
    **more: object,
) -> list[tuple[str, Location]]:
    """Code and place of each finding about a file with one harmless rule and credential, changed."""
    spec: dict[str, object] = {
        "secret": "vault:a/b#c",
        "hosts": ["api.example.org"],
        "inject": {"query": "k"},
    }
    data = {
        "version": 1,
        "owner": owner,
        **more,
        "credentials": {"key": spec | (credential or {})},
        "rules": [
            {"name": "a", "hosts": ["api.example.org"], "methods": ["GET"], "limits": LIMITED} | (rule or {})
        ],
    }
    return [(each.code, each.location) for each in lint_document(Document.model_validate(data), TODAY)]


def test_a_plain_file_is_clean() -> None:
    """A finding about what is right would teach people to look away."""
    assert found() == []
    assert found({"credentials": ["key"]}) == []


@pytest.mark.parametrize("owner", ["TODO", "nobody", "<your-team>", "n/a", "???", "change-me", "-"])
def test_an_owner_who_is_nobody_is_found(owner: str) -> None:
    """Somebody has to be asked when an alarm comes."""
    assert found(owner=owner) == [(Code.NO_OWNER, ("owner",))]


@pytest.mark.parametrize(
    "owner", ["platform-security", "Anna Meyer", "team nobody-knows", "x", "owners-guild"]
)
def test_an_owner_who_is_somebody_passes(owner: str) -> None:
    """Also one with an odd name."""
    assert found(owner=owner) == []


def test_a_wildcard_over_a_service_of_strangers_is_found() -> None:
    """`review` finds the suffix itself; above it, every customer's bucket is just as near."""
    at = ("rules", 0, "hosts", 1)
    assert found({"hosts": ["api.example.org", "*.amazonaws.com"]}) == [(Code.WILDCARD_PUBLIC_SUFFIX, at)]
    assert found(credential={"hosts": ["*.windows.net"]}) == [
        (Code.WILDCARD_PUBLIC_SUFFIX, ("credentials", "key", "hosts", 0))
    ]
    signing: dict[str, object] = {"hosts": ["*.amazonaws.com"], "inject": {"sigv4": {}}}
    assert found(credential=signing) == []  # the secret signs, and stays


@pytest.mark.parametrize(
    "host", ["*.openai.com", "*.github.com", "*.example.co.uk", "amazonaws.com", "*.a.example"]
)
def test_a_wildcard_over_one_owner_s_names_passes(host: str) -> None:
    """And exact hosts, whatever is below them."""
    assert found({"hosts": [host]}) == []


def test_plain_http_is_found_with_the_secret_that_it_carries() -> None:
    """With a secret in it, or only requests that others may read and change."""
    at = ("rules", 0, "plain_http")
    assert found({"plain_http": True}) == [(Code.PLAIN_HTTP, at)]
    loud = {"plain_http": "i-accept-that-the-secret-travels-in-the-clear"}
    data = {
        "version": 1,
        "owner": "x",
        "credentials": {"k": {"secret": "vault:a/b#c", "hosts": ["a.org"], "inject": {"query": "k"}} | loud},
        "rules": [
            {"name": "a", "hosts": ["a.org"], "methods": ["GET"], "plain_http": True, "credentials": ["k"]}
            | {"limits": LIMITED}
        ],
    }
    (said,) = lint_document(Document.model_validate(data), TODAY)
    assert "with the secret of k" in said.message


def test_answers_that_are_not_searched_or_are_compressed_are_found() -> None:
    """What is given up is said with the credentials that it is about."""
    assert found({"scrub": {"off": "large files"}}) == [(Code.UNSEARCHED, ("rules", 0, "scrub"))]
    assert found({"compression": True}) == [(Code.COMPRESSION, ("rules", 0, "compression"))]
    assert found({"scrub": {"off": "large files"}, "compression": True, "credentials": ["key"]}) == [
        (Code.UNSEARCHED, ("rules", 0, "scrub"))
    ]


def test_a_rule_that_spends_a_credential_without_limits_is_found() -> None:
    """Requests or concurrency count; bytes do not say how often."""
    use: dict[str, object] = {"credentials": ["key"]}
    missing = [(Code.NO_LIMITS, ("rules", 0))]
    assert found(use | {"limits": {"bytes_up": "1MiB/hour"}}) == missing
    assert found(use | {"limits": {"concurrent": 1}}) == []
    assert found(use | {"limits": [{"bytes_up": "1MiB/hour"}, {"requests": "1/day"}]}) == []


def test_uploads_of_any_size_to_strangers_are_found() -> None:
    """Without a credential nobody knows whose account takes them."""
    missing = [(Code.NO_LIMITS, ("rules", 0))]
    assert found({"methods": ["POST"]}) == missing
    assert found({"methods": ["GET", "PATCH"], "limits": LIMITED}) == missing
    assert found({"methods": ["POST"], "max_request": "1MiB"}) == []
    assert found({"methods": ["POST"], "limits": {"bytes_up": "1MiB/hour"}}) == []
    assert found({"methods": ["GET", "HEAD", "DELETE"]}) == []
    assert found({"methods": ["POST"], "credentials": ["key"]}) == []


def test_lines_that_change_nothing_are_found() -> None:
    """The narrower of two, and the second of two equal ones."""
    hosts = found({"hosts": ["*.example.org", "api.example.org", "other.example", "other.example"]})
    assert hosts == [(Code.NEEDLESS, ("rules", 0, "hosts", 1)), (Code.NEEDLESS, ("rules", 0, "hosts", 3))]
    paths = found({"paths": ["/v1/models", "/v1/**", "/v1/*"]})
    assert paths == [(Code.NEEDLESS, ("rules", 0, "paths", 0)), (Code.NEEDLESS, ("rules", 0, "paths", 2))]
    assert found({"paths": ["/v1/*", "/v1/*/x", "/*/x"], "hosts": ["a.org", "*.a.org"]}) == []


def test_observing_is_found_and_for_how_long() -> None:
    """A month of an agent's work is enough to learn from."""
    short = {"reason": "learning", "until": "2027-02-01"}
    assert found(observe=short) == [(Code.OBSERVE, ("observe",))]
    long = found(observe=short | {"until": "2027-02-02"})
    assert long == [(Code.OBSERVE, ("observe",)), (Code.LONG_LIFETIME, ("observe", "until"))]


def test_a_yes_that_counts_for_hours_is_found() -> None:
    """Once, or for an hour, is what somebody can still answer for."""
    at = ("rules", 0, "ask", "remember")
    assert found({"ask": {"remember": "2h"}}) == [(Code.LONG_LIFETIME, at)]
    assert found({"ask": {"remember": "1h"}}) == found({"ask": {}}) == []


def test_a_signature_without_a_time_is_found() -> None:
    """It counts as long as the key, whatever is revoked. A time must be signed, too."""
    time = {"header": "X-Time"}
    for message, timestamp, found_ in (
        ("{path}", None, True),
        ("{path}", time, True),
        ("{path}{timestamp}", time, False),
    ):
        hmac = {"header": "X-Sig", "message": message, "timestamp": timestamp}
        at: Location = ("credentials", "key", "inject", 0, "hmac")
        expected = [(Code.LASTING_SIGNATURE, at)] if found_ else []
        assert found(credential={"inject": {"hmac": hmac}}) == expected


def test_asking_about_a_websocket_is_asking_about_its_handshake() -> None:
    """Nobody is asked about its messages."""
    assert (Code.HANDSHAKE_ONLY, ("rules", 0, "websocket")) in found({"ask": {}, "websocket": True})
    assert Code.HANDSHAKE_ONLY not in {code for code, _ in found({"ask": {}})}
