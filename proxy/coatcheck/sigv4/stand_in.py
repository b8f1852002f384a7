"""The key pair that a sandbox signs with."""

from base64 import b32encode, b64encode
from hashlib import sha256


def stand_in(handle: str) -> tuple[str, str]:
    """The access key id and secret access key that go with a handle. Nothing in them is secret."""
    key_id = b32encode(sha256(b"coatcheck sigv4 id\0" + handle.encode()).digest()).decode()
    key = b64encode(sha256(b"coatcheck sigv4 key\0" + handle.encode()).digest()).decode()
    return "CCHA" + key_id[:16], key[:40]


def environment(handle: str) -> dict[str, str]:
    """The variables that AWS SDKs and the AWS CLI read: what a sandbox gets for a SigV4 credential."""
    key_id, key = stand_in(handle)
    return {"AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": key, "AWS_SESSION_TOKEN": handle}
