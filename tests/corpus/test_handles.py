"""What stands in braces is what it says: forgeries that differ in one thing, writings that can be undone."""

import base64
import gzip
import html
import json
from pathlib import Path
from urllib.parse import unquote

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims, HandleKeys, sign, verify
from tests.corpus import echoes, handles
from tests.corpus.expand import FILTERS, expander
from tests.corpus.proxies import Inside

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEYS = HandleKeys("k1", {"k1": KEY.public_key()})
HANDLE = sign(Claims("ses_a", "vendor", 1, 1_000, 2_000, "j1"), KEY, "k1")
INSIDE = Inside("ses_a", ("", 0), Path(), {"vendor": HANDLE}, {}, {}, ("k1", KEY), lambda: 1_500.0)
REGISTERED = handles
"""It adds to what may stand in braces."""
SECRET = "sk/odd+<\"&'>=~*-0123456789abcdefghijABCDEFGHIJ"


def text(case: str) -> str:
    return expander(INSIDE, {"odd": SECRET})(case).decode("latin-1")


def reason(case: str) -> Reason | None:
    said = verify(text(case), KEYS)
    return said.reason if isinstance(said, Deny) else None


def test_what_is_signed_by_the_proxys_key_is_genuine_but_for_what_was_changed() -> None:
    """`ours` alone is a handle; times are seconds from the proxy's now."""
    assert verify(text("{ours:vendor,exp=5}"), KEYS) == Claims("ses_a", "vendor", 1, 1_440, 1_505, "forged")
    assert reason("{ours:vendor,gen=7}") is None
    for change in ("-jti", "+nbf=1", "twice", "gen=true", "raw=[1]"):
        assert reason(f"{{ours:vendor,{change}}}") is Reason.HANDLE_MALFORMED


@pytest.mark.parametrize(
    "change", ["header:alg=none", "claim:gen=2", "signed_by:attacker", "with_own_key", "flip:-40"]
)
def test_a_forgery_without_the_key_is_no_handle(change: str) -> None:
    """And without the change it is one."""
    assert reason("{handle:vendor}") is None
    assert reason(f"{{handle:vendor|{change}}}") is Reason.HANDLE_UNKNOWN


def test_ways_of_writing_undo() -> None:
    """Each by a reader that is not ours."""
    assert base64.b64decode(text("{secret:odd|basic:me}")).decode() == f"me:{SECRET}"
    assert unquote(text("{secret:odd|every:percent}")) == unquote(text("{secret:odd|quote:/}")) == SECRET
    assert json.loads(f'"{text("{secret:odd|every:unicode}")}"') == SECRET
    assert html.unescape(text("{secret:odd|html|replace:+,&#43;}")) == SECRET
    assert bytes.fromhex(text("{secret:odd|every:hex}")).decode() == SECRET
    assert gzip.decompress(text("{secret:odd|compressed:gzip}").encode("latin-1")).decode() == SECRET
    assert text("{text:abcde|chunked:2}") == "2\r\nab\r\n2\r\ncd\r\n1\r\ne\r\n"
    assert text("{text:hi|frame:81}") == "\x81\x02hi"
    assert text("{text:hi|frame:81,masked}") == "\x81\x82\0\0\0\0hi"
    assert FILTERS["segment"]("cch_a.b.c", "1=x*3") == "cch_a.xxx.c"


@pytest.mark.parametrize(
    "written",
    [
        "{secret:odd}",
        "{secret:odd|rest:16|first:12}",
        "{secret:odd|chunked:3}",
        "{secret:odd|percent}",
        "{secret:odd|every:unicode}",
        "{secret:odd|html}",
        "{secret:odd|every:hex}",
        "{secret:odd|every:spaced}",
        "{secret:odd|basic:me}",
        "{secret:odd|prefix:x|base64url|percent}",
        "{secret:odd|charset:utf-16le}",
    ],
)
def test_an_echo_is_found_however_it_is_written(written: str) -> None:
    """So that no case passes because its judge reads less than an attacker would."""
    assert echoes.found_in(text(f"before {written} after").encode("latin-1"), {"odd": SECRET})
    masked = text("before {secret:odd|masked} sk/odd after").encode("latin-1")
    assert not echoes.found_in(masked, {"odd": SECRET})
