"""What is shown of sessions and handles."""

from coatcheck.control.views import minted_view
from coatcheck.decision.policy import Credential, Policy, SecretRef
from coatcheck.injectors.header import HeaderInjection
from coatcheck.injectors.sigv4 import SigV4Injection
from coatcheck.sigv4.stand_in import stand_in
from coatcheck.state.issued import MintedHandle


def policy_with(inject: HeaderInjection | SigV4Injection) -> Policy:
    secret = SecretRef("memory", "secret", "x", "key")
    return Policy("default", "tests", "0" * 64, {"x": Credential("x", secret, (), inject)})


def test_a_sigv4_credential_comes_with_its_stand_in_key_pair() -> None:
    """AWS SDKs read three variables; the session token is the handle."""
    minted = MintedHandle("x", None, "cch_handle", 1.0, "j" * 16)
    shown = minted_view(minted, policy_with(SigV4Injection()))
    key_id, key = stand_in("cch_handle")
    assert shown.environment == {
        "AWS_ACCESS_KEY_ID": key_id,
        "AWS_SECRET_ACCESS_KEY": key,
        "AWS_SESSION_TOKEN": "cch_handle",
    }


def test_other_credentials_come_under_their_own_name() -> None:
    """Or under none, where the policy names none."""
    named = MintedHandle("x", "X_KEY", "cch_handle", 1.0, "j" * 16)
    policy = policy_with(HeaderInjection("x-key", "{secret}"))
    assert minted_view(named, policy).environment == {"X_KEY": "cch_handle"}
    nameless = MintedHandle("x", None, "cch_handle", 1.0, "j" * 16)
    assert minted_view(nameless, policy).environment == {}
    assert minted_view(named, None).environment == {"X_KEY": "cch_handle"}
