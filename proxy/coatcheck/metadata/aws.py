"""A handle in the shapes in which AWS SDKs fetch keys: instance role (IMDSv2) and container credentials.

The key pair is a stand-in that signs nothing elsewhere, and its session token is the handle (`sigv4/`).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from coatcheck.metadata.http import CONTAINER_HOST, IMDS_HOST

ROLES: Final = "/latest/meta-data/iam/security-credentials"
CONTAINER: Final = "/v1/aws/credentials"
PREFERRED: Final = "aws"
"""The credential that counts where a policy has several and a client can name none."""


def default_role(names: Sequence[str]) -> str | None:
    """The credential for clients that name none: the only one, or the one called `aws`."""
    if PREFERRED in names:
        return PREFERRED
    return names[0] if len(names) == 1 else None


def role_list(names: Sequence[str]) -> bytes:
    """One line a role, as IMDS answers. SDKs take the answer for one name, so the default stands alone."""
    default = default_role(names)
    return "\n".join([default] if default is not None else names).encode()


def instance_role(minted: Mapping[str, Any], minted_at: float) -> bytes:
    """What IMDS answers for a role. Times are Unix seconds."""
    answer = {"Code": "Success", "LastUpdated": _time(minted_at), "Type": "AWS-HMAC", **_keys(minted)}
    return json.dumps(answer).encode()


def container_credentials(minted: Mapping[str, Any]) -> bytes:
    """What a container's credentials endpoint answers."""
    return json.dumps(_keys(minted)).encode()


def container_environment(token: str) -> dict[str, str]:
    """The variables with which an SDK finds the endpoint, and no key.

    Both addresses are reached directly: botocore asks IMDS through HTTP_PROXY, where it is refused.
    """
    direct = f"{IMDS_HOST},{CONTAINER_HOST}"
    return {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{CONTAINER_HOST}{CONTAINER}",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": token,
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def _keys(minted: Mapping[str, Any]) -> dict[str, str]:
    variables = minted["environment"]
    return {
        "AccessKeyId": variables["AWS_ACCESS_KEY_ID"],
        "SecretAccessKey": variables["AWS_SECRET_ACCESS_KEY"],
        "Token": variables["AWS_SESSION_TOKEN"],
        "Expiration": _time(minted["expires_at"]),
    }


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(int(at), UTC):%Y-%m-%dT%H:%M:%SZ}"
