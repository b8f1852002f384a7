"""Two credentials on one rule can always be told apart, or the file is refused."""

import pytest

from coatcheck.policy.file.credential_review import ambiguous_credentials, review_credential
from coatcheck.policy.file.models import CredentialSpec, RuleSpec

RULE = RuleSpec.model_validate(
    {"name": "r", "hosts": ["*.example.org"], "methods": ["GET", "POST"], "credentials": ["one", "two"]}
)
OPTIONAL = {"handle": "optional"}


def credential(**keys: object) -> CredentialSpec:
    base = {"secret": "vault:a/b#c", "hosts": ["api.example.org"], "inject": {"header": "Authorization"}}
    return CredentialSpec.model_validate(base | keys)


def confused(one: dict[str, object], other: dict[str, object]) -> bool:
    pair = {"one": credential(**one), "two": credential(**other)}
    return bool(list(ambiguous_credentials(("rules", 0), RULE, pair)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (OPTIONAL, OPTIONAL),
        (OPTIONAL, OPTIONAL | {"inject": {"query": "key"}}),
        (OPTIONAL, {}),
        ({}, OPTIONAL),
        (OPTIONAL, {"inject": {"basic": {}}}),
        (OPTIONAL, {"inject": {"sigv4": {}}}),
        (OPTIONAL, OPTIONAL | {"hosts": ["*.example.org"]}),
        (OPTIONAL | {"paths": ["/a/**"]}, OPTIONAL | {"paths": ["/a/b"]}),
        (OPTIONAL | {"methods": ["GET"]}, OPTIONAL),
    ],
)
def test_credentials_that_nothing_tells_apart_are_found(
    one: dict[str, object], other: dict[str, object]
) -> None:
    """Neither shows a handle, or one would take the place in which the other's handle stands."""
    assert confused(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        ({}, {"inject": {"query": "key"}}),
        (OPTIONAL, {"inject": {"query": "key"}}),
        (OPTIONAL, OPTIONAL | {"hosts": ["other.example.org"]}),
        (OPTIONAL, OPTIONAL | {"hosts": ["api.example.com"]}),
        (OPTIONAL | {"methods": ["GET"]}, OPTIONAL | {"methods": ["POST"]}),
        (OPTIONAL | {"paths": ["/a/**"]}, OPTIONAL | {"paths": ["/b/**"]}),
    ],
)
def test_credentials_that_a_handle_or_the_request_tells_apart_pass(
    one: dict[str, object], other: dict[str, object]
) -> None:
    """Different handles, places, hosts, methods or paths."""
    assert not confused(one, other)


def test_a_secret_is_not_sent_to_a_service_full_of_strangers() -> None:
    """Except by SigV4, which signs with it and keeps it."""
    bucket = credential(hosts=["*.s3.amazonaws.com"])
    assert ["every customer" in item.message for item in review_credential((), bucket)] == [True]
    signing = credential(hosts=["*.s3.amazonaws.com"], inject={"sigv4": {}})
    assert list(review_credential((), signing)) == []
