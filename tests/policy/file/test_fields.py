"""Each text has one value or a remedy that, when followed, is accepted."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.policy import HostPattern, PathPattern, SecretRef
from coatcheck.injectors import spelling
from coatcheck.injectors.spelling import Wrong
from coatcheck.policy.file import fields


def test_plain_texts_become_values() -> None:
    """The forms of the policy reference."""
    assert fields.host_pattern("api.example.org") == HostPattern("api.example.org")
    assert fields.host_pattern("*.example.org") == HostPattern("example.org", wildcard=True)
    assert fields.path_pattern("/v1/*/x") == PathPattern(("v1", "*", "x"))
    assert fields.path_pattern("/v1/**") == PathPattern(("v1",), prefix=True)
    assert fields.path_pattern("/") == PathPattern(("",))
    assert fields.path_pattern("/**") == PathPattern((), prefix=True)
    secret = fields.secret_ref("vault:secret/team/openai#api_key")
    assert secret == SecretRef("vault", "secret", "team/openai", "api_key")
    assert str(secret) == "vault:secret/team/openai#api_key"


@pytest.mark.parametrize(
    ("parse", "wrong", "right"),
    [
        (fields.host_pattern, "API.Example.org", "api.example.org"),
        (fields.host_pattern, "api.example.org.", "api.example.org"),
        (fields.host_pattern, "https://api.example.org/v1", "api.example.org"),
        (fields.host_pattern, "user:pw@api.example.org:8443", "api.example.org"),
        (fields.host_pattern, "*.Bücher.example", "*.xn--bcher-kva.example"),
        (fields.host_pattern, "[::0]", "::"),
        (fields.path_pattern, "v1", "/v1"),
        (fields.path_pattern, "/v1?x", "/v1"),
        (fields.path_pattern, "/%7ex", "/~x"),
        (fields.method, "get", "GET"),
        (fields.method, "DELTE", "DELETE"),
        (fields.name, "OpenAI", "openai"),
        (fields.secret_ref, "vault:secret/data/x#k", "vault:secret/x#k"),
    ],
)
def test_the_remedy_is_accepted(parse: Callable[[str], object], wrong: str, right: str) -> None:
    """What to write instead is what may be written."""
    with pytest.raises(Wrong) as refused:
        parse(wrong)
    assert refused.value.instead.replace('"', "") == f"write {right}"
    parse(right)


@pytest.mark.parametrize(
    "text", ["", "sk-live-abc", "vault:x#y", "vault:a//b#c", "vault:a/../b#c", "vault:a/b#", "vault:a/b\n#c"]
)
def test_a_pasted_secret_is_not_repeated(text: str) -> None:
    """Somebody will paste the key itself where its name belongs; errors end up in CI logs."""
    with pytest.raises(Wrong) as refused:
        fields.secret_ref(text)
    assert not text or text not in str(refused.value) + refused.value.instead


PARSERS = [
    fields.host_pattern,
    fields.path_pattern,
    fields.method,
    fields.name,
    fields.secret_ref,
    spelling.handle_prefix,
    spelling.path_prefix,
    spelling.parameter,
    spelling.one_token,
    fields.line_of_text,
]


@given(st.sampled_from(PARSERS), st.text(max_size=30) | st.text(alphabet="/*.a:#%", max_size=12))
def test_any_text_is_a_value_or_wrong(parse: Callable[[str], object], text: str) -> None:
    """No parser raises anything else, and none lets a control character through."""
    remedy = ""
    try:
        parse(text)
    except Wrong as wrong:
        remedy = wrong.instead
    assert remedy or text.isprintable()


def test_the_nearest_word_is_offered() -> None:
    """Else all of them are."""
    assert spelling.closest("methds", ["methods", "paths"]) == 'write "methods"'
    assert spelling.closest("zzz", ["methods", "paths"]) == "write one of: methods, paths"
