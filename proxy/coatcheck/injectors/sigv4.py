"""`inject: {sigv4: {services: [s3], regions: [eu-central-1]}}`: AWS Signature Version 4.

The sandbox signs with a stand-in key pair whose session token is the handle; the request leaves with the
signature of the real pair. How signatures are read, checked and made is `coatcheck.sigv4`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from coatcheck.decision.denial import Deny
from coatcheck.decision.injection import Found, Injector, Location, Outgoing
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.spelling import Parameter, Strict, Way
from coatcheck.sigv4.covered import LARGEST_HASHED_BODY, needs_body_hash
from coatcheck.sigv4.keys import parse_aws_keys
from coatcheck.sigv4.resign import prepare, resign
from coatcheck.sigv4.stand_in import environment


@dataclass(frozen=True, slots=True)
class SigV4Injection(Injector):
    """AWS Signature Version 4. The secret is a JSON object or `id:key[:token]`."""

    key: ClassVar[str] = "sigv4"
    sends_secret: ClassVar[bool] = False
    signs: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    beside_others: ClassVar[bool] = False
    needs_handle: ClassVar[bool] = True
    aws_keys: ClassVar[bool] = True
    form: ClassVar[str] = "an AWS key pair"
    services: frozenset[str] = frozenset()
    """Service names from the credential scope that may be signed for; empty means any."""
    regions: frozenset[str] = frozenset()

    def stands_at(self, found: Found, glued: str) -> bool:
        place = found.location is Location.HEADER or found.location is Location.QUERY
        return place and found.name.lower() == "x-amz-security-token" and found.is_all_but(glued)

    def shown(self, head: RequestHead, value: str) -> RequestHead:
        return replace(head, headers=(*head.headers, ("x-amz-security-token", value)))

    @property
    def spot(self) -> tuple[str, str]:
        return "header", "authorization"

    def prepare(self) -> None:
        prepare()

    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        keys = parse_aws_keys(secret)
        if isinstance(keys, Deny):
            return keys
        digest = hashlib.sha256(request.body).hexdigest() if request.body is not None else None
        return resign(
            request.head,
            request.destination,
            digest,
            handle,
            keys,
            request.now,
            services=self.services,
            regions=self.regions,
        )

    def buffers(self, head: RequestHead) -> int:
        return LARGEST_HASHED_BODY if needs_body_hash(head) else 0

    def unusable(self, secret: str, scrub: bool) -> Deny | None:
        keys = parse_aws_keys(secret)
        return keys if isinstance(keys, Deny) else None

    def private(self, secret: str) -> tuple[str, ...]:
        keys = parse_aws_keys(secret)
        return () if isinstance(keys, Deny) else keys.to_scrub

    @property
    def place(self) -> str:
        return "an AWS signature"

    def terms(self) -> Mapping[str, frozenset[str]]:
        return {"AWS services": self.services, "AWS regions": self.regions}

    def environment(self, handle: str) -> Mapping[str, str]:
        return environment(handle)


class SigV4Spec(Strict):
    services: Annotated[list[Parameter], Field(min_length=1)] = Field(
        [], description="AWS services that may be signed for. Default: all."
    )
    regions: Annotated[list[Parameter], Field(min_length=1)] = Field(
        [], description="AWS regions that may be signed for. Default: all."
    )


def _build(values: Mapping[str, Any]) -> SigV4Injection:
    spec: SigV4Spec = values["sigv4"]
    return SigV4Injection(frozenset(spec.services), frozenset(spec.regions))


WAY = Way(
    keys={"sigv4": (SigV4Spec, "AWS Signature Version 4; the handle is the session token.")},
    build=_build,
    parts={"sigv4": SigV4Spec},
    examples={"sigv4": "sigv4: {services: [s3], regions: [eu-central-1]}"},
)
