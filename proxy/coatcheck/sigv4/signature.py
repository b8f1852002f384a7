"""One SigV4 signature, by botocore's canonical form and key derivation.

botocore is 22 MB and 60 ms of import: only a daemon that signs pays for it (`resign.prepare`).
"""

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from coatcheck.sigv4.claim import S3_SERVICES
from coatcheck.sigv4.covered import ToSign

if TYPE_CHECKING:
    from http.client import HTTPMessage


def signature(key: str, timestamp: str, what: ToSign) -> str:
    """64 hexadecimal digits. `timestamp` is `20260102T030405Z`."""
    path, _, query = what.target.partition("?")
    # botocore takes S3's path and every query as they stand; AWS, like curl and the Go and JavaScript
    # SDKs, decodes and encodes them anew. For what botocore itself sends, both are the same.
    if what.service in S3_SERVICES:
        path = "/".join(_encode(segment) for segment in path.split("/"))
    pairs = [pair.partition("=") for pair in query.split("&")] if query else []
    query = "&".join(f"{_encode(name)}={_encode(value)}" for name, _, value in pairs)
    request = AWSRequest(what.method, f"{what.destination.url}{path}?{query}", dict(what.headers))
    request.context.update(timestamp=timestamp, payload=what.payload)
    # The access key id is not under the signature: it stands in the scope beside it only.
    make = _S3Signer if what.service in S3_SERVICES else _Signer
    signer = make(Credentials("unused", key), what.service, what.region)
    canonical = signer.canonical_request(request)
    return signer.signature(signer.string_to_sign(request, canonical), request)


class _Signer(SigV4Auth):
    """Signs what it is given. `add_auth` is never called: it adds headers of its own, and it logs the
    canonical request, session token included, at debug level."""

    def headers_to_sign(self, request: AWSRequest) -> "HTTPMessage":
        return request.headers

    def payload(self, request: AWSRequest) -> str:
        return str(request.context["payload"])


class _S3Signer(_Signer, S3SigV4Auth):
    """The same without botocore's second encoding of the path."""


def _encode(text: str) -> str:
    return quote(unquote_to_bytes(text), safe="-_.~")
