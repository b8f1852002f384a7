"""Real AWS key pairs as stores hold them."""

import json

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.sigv4.keys import AwsKeys, parse_aws_keys
from tests.known_secrets import known_secret

ID = known_secret("aws id", prefix="AKIA", length=16)
KEY = known_secret("aws key", prefix="")
TOKEN = known_secret("aws token", prefix="IQoJ/+==", length=200)
LONG_LIVED = {"access_key_id": ID, "secret_access_key": KEY}


@pytest.mark.parametrize(
    ("stored", "want"),
    [
        (json.dumps(LONG_LIVED), AwsKeys(ID, KEY)),
        (json.dumps({**LONG_LIVED, "session_token": None}), AwsKeys(ID, KEY)),
        (json.dumps({**LONG_LIVED, "session_token": TOKEN}) + "\n", AwsKeys(ID, KEY, TOKEN)),
        (f"{ID}:{KEY}", AwsKeys(ID, KEY)),
        (f"{ID}:{KEY}:{TOKEN}", AwsKeys(ID, KEY, TOKEN)),
    ],
)
def test_both_forms_are_read(stored: str, want: AwsKeys) -> None:
    """A JSON object or `id:key[:token]`; what must be scrubbed follows from it."""
    keys = parse_aws_keys(stored)
    assert keys == want
    assert want.to_scrub == ((KEY, TOKEN) if want.session_token else (KEY,))


@pytest.mark.parametrize(
    "stored",
    [
        "",
        KEY,
        f"{ID}:{KEY}:{TOKEN}:more",
        f"{ID}:short",
        f"{ID}:{KEY}:short",
        f"A:{KEY}",
        f"{ID} x:{KEY}",
        f"{ID}/x:{KEY}",
        f"{ID}:{KEY}\n{TOKEN}",
        f"{ID}:{KEY}é",
        "{" + KEY,
        json.dumps({"access_key_id": ID}),
        json.dumps({**LONG_LIVED, "region": "x"}),
        json.dumps({**LONG_LIVED, "secret_access_key": [KEY]}),
        json.dumps({**LONG_LIVED, "session_token": {"x": KEY}}),
        "{" * 100_000,
    ],
)
def test_anything_else_is_unusable_and_not_quoted(stored: str) -> None:
    """The refusal says what to store and repeats nothing of what is stored."""
    result = parse_aws_keys(stored)
    assert isinstance(result, Deny) and result.reason is Reason.SECRET_UNUSABLE
    assert "id:key[:token]" in result.detail
    assert KEY not in result.detail and ID not in result.detail


def test_keys_do_not_print_themselves() -> None:
    """Neither the pair nor its token stands in a repr."""
    text = repr(AwsKeys(ID, KEY, TOKEN))
    assert ID not in text and KEY not in text and TOKEN not in text
