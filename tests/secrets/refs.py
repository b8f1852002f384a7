"""References to secrets, and what a failure to read one may say."""

import traceback

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import SecretUnavailable


def ref(path: str, field: str = "api_key", mount: str = "secret") -> SecretRef:
    return SecretRef("vault", mount, path, field)


def assert_tells_nothing(failure: BaseException, *secrets: str) -> None:
    """Neither the exception nor anything that hangs on it holds one of the secrets."""
    text = "".join(traceback.format_exception(failure)) + repr(failure) + repr(vars(failure))
    assert not [name for name in secrets if name in text]
    seen = failure.__context__ or failure.__cause__
    assert seen is None or isinstance(seen, SecretUnavailable)
