"""What of a secret is looked for: its secret parts, plain, in hex and in Base64, and nothing that is
public."""

import base64

import pytest

from coatcheck.decision.encodings import Form, forms_of

RUN = 12
KEY = "sk-proj-0123456789abcdefABCDEF"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
_KIND = "PRIVATE KEY"  # said apart: who searches a tree for keys should find none here


def forms(secret: str | bytes, name: str = "") -> list[Form]:
    raw = secret.encode() if isinstance(secret, str) else secret
    return [form for form in forms_of(raw) if name in ("", form.name)]


def plain(secret: str | bytes) -> list[bytes]:
    return [form.text for form in forms(secret, "plain")]


def test_a_key_has_few_forms() -> None:
    """Escapes are undone by readings, and are no forms."""
    key = "sk-proj-0123456789xyzABCDEF"
    assert {form.name for form in forms(key)} == {"plain", "base64", "hex"}
    assert len(forms(key)) == 9


@pytest.mark.parametrize(
    ("secret", "lead"),
    [
        (KEY, b"sk-proj-"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", b"ghp_"),
        ("github_pat_11ABCDEFG0123456789abcdef", b"github_pat_"),
        ("sk-ant-api03-0aB3dE5fG7hI9jK1lM3nO5", b"sk-ant-api03-"),
        ("AKIA0123456789ABCDEFGHIJ", b"AKIA"),
        (TOKEN, b"eyJhbGciOiJIUzI1NiJ9."),
        ("correct-horse-battery-staple-again", b""),
        ("0123456789abcdef", b""),
        ("sk-0123456789A", b""),
    ],
)
def test_a_prefix_that_many_share_is_public(secret: str, lead: bytes) -> None:
    """It does not count as secret. Words of a pass phrase do, and so does what would leave too little."""
    (form,) = [form for form in forms(secret, "plain") if form.text in secret.encode()][:1]
    assert (form.lead, form.lead + form.text) == (lead, secret.encode())


def test_public_structure_is_not_looked_for() -> None:
    """A PEM file's armour, a JSON document's keys, a URL's scheme and host: all stand in innocent text."""
    lines = "QUJDREVGR0hJSktMTU5PUFFS\nU1RVVldYWVphYmNkZWZnaGlq"
    pem = f"-----BEGIN {_KIND}-----\n{lines}\n-----END {_KIND}-----\n"
    assert plain(pem) == [lines.replace("\n", "").encode()]
    document = '{"type": "service_account", "private_key_id": "0123456789abcdef0123", "uri": "https://a.b/x"}'
    assert all(b"private_key_id" not in text and b"service_account" not in text for text in plain(document))
    assert b"0123456789abcdef0123" in b" ".join(plain(document))
    assert plain("postgres://user:hunter2hunter2@db.internal.example/prod")[0] == b"user:hunter2hunter2"
    assert plain("https://hooks.example.com/services/T0123/B0123/0123456789abcdef")[0][:9] == b"/services"


def test_what_is_only_structure_is_looked_for_as_it_is() -> None:
    """A secret is never searched for by nothing at all."""
    assert plain("https://a-host-that-is-a-secret.example")[0] == b"https://a-host-that-is-a-secret.example"


def test_letter_case_says_nothing_in_a_uuid() -> None:
    """Nor do its dashes."""
    uuid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    bare = uuid.replace("-", "")
    assert set(plain(uuid)) == {text.encode() for text in (uuid, uuid.upper(), bare, bare.upper())}
    assert plain("0f8fad5bXd9cb469fa165") == [b"0f8fad5bXd9cb469fa165"]


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("secret", [b"0123456789abcdef", b"0123456789abcdefg", b"0123456789abcdefgh"])
def test_base64_is_looked_for_at_every_alignment(before: int, secret: bytes) -> None:
    """All characters of which no bit belongs to a neighbour."""
    encoded = base64.b64encode(b"u" * before + secret + b"v" * 4)
    found = [form.text for form in forms(secret, "base64") if form.text in encoded]
    assert found and len(found[0]) * 6 >= len(secret) * 8 - 10


def test_text_beyond_ascii_is_looked_for_in_other_charsets() -> None:
    """Latin-1, as headers are read, and UTF-16, whose zeros are left out of readings."""
    secret = "pässwörd-äöü-0123456789"
    assert secret.encode("latin-1") in plain(secret)
    assert {form.text for form in forms(secret, "utf-16")} >= {
        secret.encode("utf-16-le").replace(b"\0", b""),
        secret.encode("utf-32-be").replace(b"\0", b""),
    }


def test_a_form_does_not_show_its_text() -> None:
    """It may stand in a traceback."""
    assert "0123456789" not in repr(forms(KEY))


def test_a_value_of_json_ends_where_its_quotation_marks_do() -> None:
    """A page that names the whole value would otherwise show a part of something longer, which is counted."""
    document = '{\n  "project": "my-project-1",\n  "password": "Zx0Yw1Vu2Ts3Rq4P"\n}'
    assert set(plain(document)) == {b"my-project-1", b"Zx0Yw1Vu2Ts3Rq4P"}
