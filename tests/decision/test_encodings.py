"""The forms of a secret: each of the common writers' is there, by its name, and each reads as the secret."""

import base64
import json
from collections.abc import Iterator
from html import escape, unescape
from urllib.parse import quote, unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.encodings import encodings, named_encodings

KEY = "sk-proj-0123456789abcdefABCDEF"
ODD = "a\"b'c<d>&e/f+g~h é`i 12=34W"
JSON_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'+`"}


def basic(user: str, secret: str) -> bytes:
    return base64.b64encode(f"{user}{secret}".encode())


def test_a_key_that_no_writer_escapes_has_one_form_besides_base64_and_hex() -> None:
    """So most sets of patterns stay small."""
    named = set(named_encodings(KEY.encode()))
    assert {name for name, _ in named} == {"plain", "base64", "hex"}
    assert [form for name, form in named if name == "plain"] == [KEY.encode()]
    assert {form for name, form in named if name == "hex"} == {
        KEY.encode().hex().encode(),
        KEY.encode().hex().upper().encode(),
    }


def test_names_say_how_a_form_came_about() -> None:
    """They are told in findings (`coatcheck sandbox inspect`)."""
    assert {name for name, _ in named_encodings(ODD.encode())} == {
        "plain",
        "hex",
        "base64",
        "percent",
        "escaped",
        "base64 in percent",
        "base64 in escaped",
    }


@pytest.mark.parametrize(
    "form",
    [
        ODD,
        json.dumps(ODD)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1].replace("/", "\\/"),
        json.dumps(ODD)[1:-1].replace("\\u00e9", "\\u00E9"),
        json.dumps(ODD)[1:-1].replace('\\"', "\\u0022").translate(JSON_ESCAPES),
        json.dumps(ODD)[1:-1].replace('\\"', "\\u0022").translate(JSON_ESCAPES).replace("\\u003c", "\\u003C")
        .replace("\\u003e", "\\u003E").replace("\\u002b", "\\u002B").replace("\\u00e9", "\\u00E9"),
        escape(ODD, quote=False),
        escape(ODD),
        escape(ODD, quote=False).replace('"', "&#34;").replace("'", "&#39;").replace("+", "&#43;"),
        escape(ODD).replace("/", "&#x2F;").replace("`", "&#x60;").replace("=", "&#x3D;"),
        quote(ODD),
        quote(ODD, safe=""),
        quote(ODD, safe="").replace("%20", "+"),
        quote(ODD, safe="").replace("%20", "+").replace("~", "%7E"),
    ],
)  # fmt: skip
def test_a_usual_form_is_among_them(form: str) -> None:
    """JSON of several writers, pages, URLs and forms."""
    assert form.encode() in encodings(ODD.encode())


def test_hexadecimal_percent_and_text_come_in_either_case_and_charset() -> None:
    """`%2f`, dumps in capitals, and latin-1, in which some readers take headers."""
    forms = encodings(ODD.encode())
    raw = ODD.encode()
    assert {raw.hex().encode(), raw.hex().upper().encode()} <= forms
    lower = "".join(part.lower() if part[0] == "%" else part for part in _percent_parts(quote(ODD, safe="")))
    assert lower.encode() in forms
    assert ODD.encode("latin-1") in forms and base64.b64encode(ODD.encode("latin-1")) in forms


def _percent_parts(text: str) -> list[str]:
    parts, at = [], 0
    while at < len(text):
        size = 3 if text[at] == "%" else 1
        parts.append(text[at : at + size])
        at += size
    return parts


@pytest.mark.parametrize("secret", [KEY, ODD, KEY + "1", KEY + "12"])
def test_base64_as_in_basic_is_whole_with_and_without_its_padding(secret: str) -> None:
    """In either alphabet, by itself and behind a known user name; and inside a URL."""
    forms = encodings(secret.encode(), ["user", "x-access-token"])
    for user in ("", "user:", "x-access-token:"):
        whole = basic(user, secret)
        for form in (whole, whole.replace(b"+", b"-").replace(b"/", b"_")):
            assert {form, form.rstrip(b"=")} <= forms
            assert quote(form, safe="").encode() in forms
    assert basic("other:", secret) not in forms


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=16, max_size=30))
def test_every_form_reads_as_the_secret(secret: str) -> None:
    """Nothing is looked for that is not an echo of it. (Of `+` and a blank a form may make one.)"""
    wanted = {text.replace("+", " ") for text in (secret, secret.encode().decode("latin-1"))}
    for name, form in named_encodings(secret.encode()):
        if name in ("plain", "hex", "percent", "escaped"):
            raw = bytes.fromhex(form.decode()) if name == "hex" else form
            readings = {text for charset in ("utf-8", "latin-1") for text in _readings(raw, charset)}
            assert {text.replace("+", " ") for text in readings} & wanted, (name, form)


def _readings(raw: bytes, charset: str) -> Iterator[str]:
    text = raw.decode(charset, "replace")
    yield from (text, unescape(text), unquote_plus(text, charset))
    try:
        yield str(json.loads(f'"{text}"'))
    except ValueError:
        return


def test_bytes_that_are_no_text_have_forms_too() -> None:
    """An echo of them is an echo."""
    raw = bytes(range(0x80, 0xA0))
    forms = encodings(raw)
    assert {raw, base64.b64encode(raw), quote(raw, safe="").encode(), raw.hex().encode()} <= forms
