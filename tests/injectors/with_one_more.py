"""Run by `test_registry` on a copy of the package that has one more file in injectors/."""

from datetime import date

import pytest

import coatcheck.injectors
from coatcheck.control.views import minted_view
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, Edits, RequestHead
from coatcheck.decision.policy import Policy, credential_allows
from coatcheck.decision.substitute import check_secret, substitute
from coatcheck.decision.verdict import Injection
from coatcheck.policy import load_policy
from coatcheck.policy.diff.difference import compare
from coatcheck.policy.editor_schema import policy_schema
from coatcheck.policy.file.problem import PolicyError
from coatcheck.policy.lint.lint import lint
from coatcheck.policy.samples.samples import Sample
from coatcheck.policy.samples.trial import try_sample
from coatcheck.state.issued import MintedHandle

POLICY = """
version: 1
owner: platform-security
credentials:
  gift:
    secret: memory:secret/coupon#number
    hosts: [shop.example]
    inject: {inject}
    env: COUPON
rules:
  - name: buy
    hosts: [shop.example]
    methods: [POST]
    credentials: [gift]
    limits: {{requests: 60/minute}}
"""


def policy(inject: str) -> Policy:
    return load_policy("shop", POLICY.format(inject=inject).encode())


def main() -> None:
    assert "coupon" in coatcheck.injectors.WAYS
    written = policy("{coupon: {shop: corner}}")
    gift = written.credentials["gift"]
    assert gift.inject.key == "coupon" and gift.inject.place == "the coupon"

    # what is wrong with a file is said in its words
    for wrong, message in (
        ("{coupon: {shp: corner}}", 'unknown key "shp"; write "shop"'),
        ("{coupon: corner}", "write `coupon: {shop: corner}`"),
        ("{coupon: {shop: corner}, query: key}", "inject says coupon and query"),
        ("{cupon: {}}", 'write "coupon"'),
    ):
        with pytest.raises(PolicyError) as refusal:
            policy(wrong)
        assert message in str(refusal.value)

    schema = policy_schema()["$defs"]["InjectSpec"]
    assert schema["properties"]["coupon"]["description"] == "A coupon of one shop."
    assert "a coupon" in {snippet["label"] for snippet in schema["defaultSnippets"]}

    sample = Sample.model_validate({"request": "POST https://shop.example/", "expect": "allow"})
    assert try_sample(written, sample).credentials == {"gift"}, "decide finds the handle in its place"
    data = POLICY.format(inject="[{coupon: {shop: corner}}, {coupon: {shop: corner}}]")
    _, found = lint("shop", data.encode(), date(2026, 11, 22), [sample])
    assert any("this place is declared already" in each.problem.message for each in found)

    changes = compare("shop", written, policy("{coupon: {shop: market}}"))
    assert "the coupon's shop" in repr(changes), changes

    handle, number = "cch_eyJhbGciOiJFZERTQSJ9.e30.c2ln", "1234567890123456"
    assert check_secret(gift, number) is None
    refused = check_secret(gift, "a long text, which is no number")
    assert refused is not None and "a coupon is a long number" in refused.detail  # so doctor says

    here = Destination("https", "shop.example", 443)
    bare = RequestHead("POST", "/", (("host", "shop.example"),))
    head = gift.inject.shown(bare, handle)
    assert credential_allows(gift, here, head) is None
    edits = substitute(head, here, None, (Injection(gift, handle),), {"gift": number}, 0.0)
    assert edits == Edits((("x-coupon", f"corner:{number}"),)), edits
    without = substitute(bare, here, None, (Injection(gift, handle),), {"gift": number}, 0.0)
    assert isinstance(without, Deny) and without.reason is Reason.HANDLE_MISPLACED

    shown = minted_view(MintedHandle("gift", "COUPON", handle, 1.0, "jti"), written)
    assert shown.environment == {"COUPON": handle, "COUPON_OF_THE_SHOP": f"corner:{handle}"}


if __name__ == "__main__":
    main()
    print("known everywhere")
