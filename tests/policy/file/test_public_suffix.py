"""Suffixes under which strangers register names are known."""

from datetime import date

import pytest
from publicsuffixlist import PublicSuffixList

from coatcheck.policy.file.public_suffix import (
    UNLISTED,
    SuffixKind,
    list_written,
    public_suffix,
    public_suffix_below,
)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        ("com", SuffixKind.REGISTRY),
        ("co.uk", SuffixKind.REGISTRY),
        ("xn--55qx5d.cn", SuffixKind.REGISTRY),
        ("github.io", SuffixKind.SERVICE),
        ("s3.amazonaws.com", SuffixKind.SERVICE),
        ("lambda-url.us-east-1.on.aws", SuffixKind.SERVICE),
        ("vercel.dev", SuffixKind.SERVICE),
        ("amplifyapp.com", SuffixKind.SERVICE),
        ("lovable.app", SuffixKind.SERVICE),
        ("bolt.host", SuffixKind.SERVICE),
        ("example.org", None),
        ("example.co.uk", None),
        ("example.github.io", None),
        ("corp.internal", None),
        ("internal", None),
        ("aws", SuffixKind.REGISTRY),
        ("on.aws", None),
    ],
)
def test_a_public_suffix_is_recognised(suffix: str, kind: SuffixKind | None) -> None:
    """Registries and services apart: the first are errors, the second a reviewer's call."""
    assert public_suffix(suffix) is kind


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        ("anything.ck", SuffixKind.REGISTRY),  # *.ck
        ("www.ck", None),  # !www.ck
        ("anything.kawasaki.jp", SuffixKind.REGISTRY),  # *.kawasaki.jp
        ("kawasaki.jp", SuffixKind.REGISTRY),  # a wildcard rule's root is a suffix itself
        ("city.kawasaki.jp", None),  # !city.kawasaki.jp
        ("a.city.kawasaki.jp", None),
        ("anything.us-central1.run.app", None),
        ("anything.compute.estate", SuffixKind.SERVICE),  # *.compute.estate
        ("a.anything.compute.estate", None),
    ],
)
def test_wildcard_and_exception_rules_are_followed(suffix: str, kind: SuffixKind | None) -> None:
    """By the algorithm of publicsuffix.org."""
    assert public_suffix(suffix) is kind


def test_suffixes_kept_by_hand_are_those_that_the_list_lacks() -> None:
    """What the list has by now is removed here, so that there is one list."""
    listed = PublicSuffixList(accept_unknown=False)
    assert [name for name in sorted(UNLISTED) if listed.is_public(name)] == []
    assert all(public_suffix(name) is SuffixKind.SERVICE for name in UNLISTED)


def test_a_service_below_a_name_is_found() -> None:
    """`*.on.aws` reaches over Lambda's function URLs; names are compared as they travel, in ASCII."""
    below = public_suffix_below("on.aws")
    assert below is not None and below.endswith(".on.aws") and public_suffix(below) is SuffixKind.SERVICE
    assert public_suffix_below("example.org") is None


def test_the_list_says_when_it_was_written() -> None:
    """publicsuffix2, which this replaced, had one of 2019."""
    written = list_written()
    assert written is not None and written >= date(2026, 10, 1)
