"""Suffixes under which strangers register names are known."""

import pytest

from coatcheck.policyfile.public_suffix import SuffixKind, public_suffix


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        ("com", SuffixKind.REGISTRY),
        ("co.uk", SuffixKind.REGISTRY),
        ("anything.ck", SuffixKind.REGISTRY),
        ("github.io", SuffixKind.SERVICE),
        ("s3.amazonaws.com", SuffixKind.SERVICE),
        ("example.org", None),
        ("example.co.uk", None),
        ("corp.internal", None),
    ],
)
def test_a_public_suffix_is_recognised(suffix: str, kind: SuffixKind | None) -> None:
    """Registries and services apart: the first are errors, the second a reviewer's call."""
    assert public_suffix(suffix) is kind
