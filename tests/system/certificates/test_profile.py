"""The profile is the one source: what is made is what certs/profile.toml says, read with other eyes."""

import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from coatcheck.certificates import authority, leaf, name_constraints
from coatcheck.certificates.authority import Authority
from coatcheck.certificates.leaf import LeafIssuer
from coatcheck.certificates.profile import FILE, PROFILE, Profile
from tests.cli.transcript import coatcheck

ROOT = Path(__file__).parent.parent.parent.parent
COMMITTED = ROOT / "certs/profile.toml"
SAID = tomllib.loads(COMMITTED.read_text())
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)

CURVES = {"P-256": "secp256r1"}
USAGES = {
    "digitalSignature": "digital_signature",
    "keyCertSign": "key_cert_sign",
    "cRLSign": "crl_sign",
}
PURPOSES = {ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth", ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth"}
EVERY_USAGE = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign",
)  # fmt: skip


def made(constraints: tuple[str, ...] = ("example.test",)) -> tuple[x509.Certificate, x509.Certificate]:
    """A CA with every default, and a leaf of it."""
    ca = Authority.ephemeral(SAID["ca"]["name"], timedelta(days=365), constraints, clock=NOW.timestamp)
    return ca.certificate, LeafIssuer(ca, NOW.timestamp).issue("api.example.test").certificate


def usages(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    return {name for name in EVERY_USAGE if getattr(found, name)}


def curve(certificate: x509.Certificate) -> str:
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.curve.name


def algorithm(certificate: x509.Certificate) -> str:
    found = certificate.signature_hash_algorithm
    assert found is not None
    return found.name.replace("sha", "SHA-")


def test_what_the_code_reads_is_the_committed_profile_word_for_word() -> None:
    """Two copies, as the wheel has no certs/; neither may change alone."""
    assert FILE.read_bytes() == COMMITTED.read_bytes()


def test_a_wheel_has_the_profile(tmp_path: Path) -> None:
    """Without it the installed command could not start."""
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(wheel).read("coatcheck/certificates/profile.toml") == COMMITTED.read_bytes()


def test_a_ca_is_as_the_profile_says(tmp_path: Path) -> None:
    """By cryptography, each value; tests/system/certificates/test_verify.py has openssl say the same."""
    ca, said = made()[0], SAID["ca"]
    assert (curve(ca), algorithm(ca)) == (CURVES[said["curve"]], said["hash"])
    assert usages(ca) == {USAGES[name] for name in said["key_usage"]}
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert basic == x509.BasicConstraints(ca=True, path_length=said["path_length"])
    limits = ca.extensions.get_extension_for_class(x509.NameConstraints).value
    assert [str(each.value) for each in limits.excluded_subtrees or ()] == said["constrained_excludes"]
    assert ca.not_valid_before_utc == NOW - timedelta(hours=said["backdate_hours"])
    stored = Authority.create(tmp_path / "ca", clock=NOW.timestamp)
    assert stored.certificate.subject.rfc4514_string() == f"CN={said['name']}"
    assert stored.not_after == NOW + timedelta(days=said["days"])


def test_a_leaf_is_as_the_profile_says() -> None:
    """By cryptography, each value."""
    certificate, said = made()[1], SAID["leaf"]
    assert (curve(certificate), algorithm(certificate)) == (CURVES[said["curve"]], SAID["ca"]["hash"])
    assert usages(certificate) == {USAGES[name] for name in said["key_usage"]}
    purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [PURPOSES[purpose] for purpose in purposes] == said["extended_key_usage"]
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime == timedelta(days=said["days"])
    assert certificate.not_valid_before_utc == NOW - timedelta(hours=SAID["ca"]["backdate_hours"])
    ca = Authority.ephemeral("CA", timedelta(days=365), clock=NOW.timestamp)
    issued = LeafIssuer(ca, NOW.timestamp).issue("api.example.test")
    assert issued.renew_at == issued.not_after - said["renew_before_days"] * 86_400


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("ca", {"curve": "P-384"}),
    ("ca", {"hash": "SHA-384"}),
    ("ca", {"backdate_hours": 3}),
    ("ca", {"path_length": 1}),
    ("ca", {"key_usage": ("keyCertSign",)}),
    ("ca", {"constrained_excludes": ("10.0.0.0/8",)}),
    ("leaf", {"curve": "P-384"}),
    ("leaf", {"days": 3}),
    ("leaf", {"key_usage": ("digitalSignature", "keyAgreement")}),
]


@pytest.mark.parametrize(("part", "changes"), CHANGES, ids=lambda value: str(value))
def test_another_profile_makes_other_certificates(
    part: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No value has a second place in the code: each that changes is seen in what is made, and only there."""
    before = fields(*made())
    changed = replace(PROFILE, **{part: replace(getattr(PROFILE, part), **changes)})
    for module in (authority, leaf, name_constraints):
        monkeypatch.setattr(module, "PROFILE", changed)
    after = fields(*made())
    (key,) = changes
    expected = {f"{part}.{key}"}
    if key in ("hash", "backdate_hours"):
        expected.add(f"leaf.{key}")  # the CA signs its leaves as itself
    assert {name for name in before if before[name] != after[name]} == expected


def fields(ca: x509.Certificate, of_leaf: x509.Certificate) -> dict[str, object]:
    found: dict[str, object] = {
        "ca.path_length": ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length,
        "ca.constrained_excludes": ca.extensions.get_extension_for_class(x509.NameConstraints).value,
        "leaf.days": of_leaf.not_valid_after_utc - of_leaf.not_valid_before_utc,
    }
    for part, certificate in (("ca", ca), ("leaf", of_leaf)):
        found |= {
            f"{part}.curve": curve(certificate),
            f"{part}.hash": algorithm(certificate),
            f"{part}.backdate_hours": certificate.not_valid_before_utc,
            f"{part}.key_usage": usages(certificate),
        }
    return found


@pytest.mark.parametrize(
    ("old", "new"),
    [("max_days = 3650", ""), ("max_days = 3650", "max_days = 3650\nmax_hours = 1"), ("[leaf]", "[leaves]")],
)
def test_a_profile_with_a_key_too_few_or_too_many_is_no_profile(old: str, new: str) -> None:
    """A misspelt key would leave a value at nobody knows what."""
    text = COMMITTED.read_text()
    assert Profile.read(text) == PROFILE
    with pytest.raises((TypeError, KeyError)):
        Profile.read(text.replace(old, new))


def test_the_command_tells_the_profiles_lifetimes(tmp_path: Path) -> None:
    """In its help, in what it refuses, and in what it makes when it is told nothing."""
    said = " ".join(coatcheck("ca", "new", "--help", cwd=tmp_path).out.split())
    longest = SAID["ca"]["max_days"]
    assert f"at most {longest}. [default: {SAID['ca']['days']};" in said
    assert coatcheck("ca", "new", "--dir", "a", "--days", str(longest + 1), cwd=tmp_path).code == 3
    assert coatcheck("ca", "new", "--dir", "a", "--days", str(longest), cwd=tmp_path).code == 0
    assert coatcheck("ca", "new", "--dir", "b", cwd=tmp_path).code == 0
    stored = {name: Authority.load(tmp_path / name).certificate for name in ("a", "b")}
    for name, days in (("a", longest), ("b", SAID["ca"]["days"])):
        lifetime = stored[name].not_valid_after_utc - stored[name].not_valid_before_utc
        assert lifetime == timedelta(days=days, hours=SAID["ca"]["backdate_hours"])
    assert stored["b"].subject.rfc4514_string() == f"CN={SAID['ca']['name']}"


def test_alert_and_guide_warn_when_the_profile_says() -> None:
    """Prometheus loads the rules as they are, so they hold the figure themselves."""
    days = SAID["rotation"]["renew_before_days"]
    rules = (ROOT / "charts/coatcheck/files/alerts.yaml").read_text()
    rule = rules.partition("alert: CoatcheckCaEnds\n")[2].partition("- alert:")[0]
    assert f" - time() < {days} * 86400\n" in rule and f"within {days} days\n" in rule
    guide = (ROOT / "docs/operators.md").read_text()
    for heading in ("### The CA\n", "### CoatcheckCaEnds\n"):
        section = guide.partition(heading)[2].partition("\n### ")[0]
        assert re.findall(r"(\d+) days", section) == [str(days)], heading
