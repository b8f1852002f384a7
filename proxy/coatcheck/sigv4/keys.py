"""A real AWS key pair, as a secret store holds it."""

import json
from dataclasses import dataclass, field
from typing import Final

from coatcheck.decision.denial import Deny, Reason

_NAMES: Final = ("access_key_id", "secret_access_key", "session_token")
_LONGEST: Final = 8192
"""Characters; session tokens of large policies reach about four thousand."""
_HOW: Final = 'store {"access_key_id": …, "secret_access_key": …, "session_token": …} or id:key[:token]'


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """Access key id, secret access key and, for temporary credentials, the session token (else "")."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)

    @property
    def to_scrub(self) -> tuple[str, ...]:
        """What must not come back in an answer. S3 echoes the canonical request, session token and all,
        when a signature does not match."""
        return tuple(value for value in (self.secret_access_key, self.session_token) if value)


def parse_aws_keys(secret: str) -> AwsKeys | Deny:
    """The key pair in a stored secret: a JSON object or `id:key[:token]`."""
    text = secret.strip()
    if text.startswith("{"):
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return _unusable("it is not a JSON object")
        if not said.keys() <= set(_NAMES) or not said.keys() >= set(_NAMES[:2]):
            return _unusable("it has other fields")
        values = [said.get(name) or "" for name in _NAMES]
    else:
        values = text.split(":")
        if len(values) not in (2, 3):
            return _unusable("it has not two or three parts")
    if not all(isinstance(value, str) and _plain(value) for value in values):
        return _unusable("a part is not plain text without blanks")
    if not 16 <= len(values[0]) <= 128 or len(values[1]) < 16:
        return _unusable("the access key id or the secret access key has not its usual length")
    if len(values) == 3 and values[2] and len(values[2]) < 16:
        return _unusable("the session token is too short to be one")
    if "/" in values[0] or "," in values[0]:
        return _unusable("the access key id would break the Authorization header")
    return AwsKeys(*values)


def _plain(value: str) -> bool:
    return len(value) <= _LONGEST and value.isascii() and value.isprintable() and " " not in value


def _unusable(why: str) -> Deny:
    return Deny(Reason.SECRET_UNUSABLE, f"the stored AWS key pair cannot be read: {why}; {_HOW}")
