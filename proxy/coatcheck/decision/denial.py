"""Refusals: the closed set of reasons, what a sandbox is told about each, and Deny itself."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why something was refused: a closed set, used in answers, audit records and metric labels."""

    # identity
    ORIGIN_UNKNOWN = "origin_unknown"
    ORIGIN_CLASS_REFUSED = "origin_class_refused"
    ISOLATION_REFUSED = "isolation_refused"
    SESSION_EXPIRED = "session_expired"
    LEASE_LAPSED = "lease_lapsed"
    SESSION_REVOKED = "session_revoked"
    # what is asked
    POLICY_MISSING = "policy_missing"
    HOST_NOT_ALLOWED = "host_not_allowed"
    PORT_NOT_ALLOWED = "port_not_allowed"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PATH_NOT_ALLOWED = "path_not_allowed"
    PLAIN_HTTP_REFUSED = "plain_http_refused"
    PROTOCOL_REFUSED = "protocol_refused"
    HOST_FORM_REFUSED = "host_form_refused"
    PATH_FORM_REFUSED = "path_form_refused"
    HEADER_FORM_REFUSED = "header_form_refused"
    FRAMING_REFUSED = "framing_refused"
    AUTHORITY_MISMATCH = "authority_mismatch"
    ADDRESS_REFUSED = "address_refused"
    OWN_SURFACE = "own_surface"
    BODY_TOO_LARGE = "body_too_large"
    BODY_UNREADABLE = "body_unreadable"
    PLANE_CANNOT = "plane_cannot"
    # the handle
    HANDLE_MISSING = "handle_missing"
    HANDLE_MALFORMED = "handle_malformed"
    HANDLE_UNKNOWN = "handle_unknown"
    HANDLE_EXPIRED = "handle_expired"
    HANDLE_REVOKED = "handle_revoked"
    HANDLE_STOLEN = "handle_stolen"
    HANDLE_STALE = "handle_stale"
    HANDLE_OUT_OF_SCOPE = "handle_out_of_scope"
    HANDLE_WRONG_HOST = "handle_wrong_host"
    HANDLE_MISPLACED = "handle_misplaced"
    SECRET_PROBED = "secret_probed"
    SIGNATURE_REFUSED = "signature_refused"
    # approvals
    APPROVAL_REFUSED = "approval_refused"
    APPROVAL_TIMEOUT = "approval_timeout"
    # how often
    RATE_LIMITED = "rate_limited"
    CONCURRENCY_LIMITED = "concurrency_limited"
    BYTES_LIMITED = "bytes_limited"
    CAPACITY = "capacity"
    # the secret
    SECRET_UNAVAILABLE = "secret_unavailable"
    SECRET_MISSING = "secret_missing"
    SECRET_UNUSABLE = "secret_unusable"
    TOO_MANY_SECRETS = "too_many_secrets"
    # the upstream
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_TLS = "upstream_tls"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_RESPONSE_REFUSED = "upstream_response_refused"
    CLIENT_GONE = "client_gone"
    # ourselves
    AUDIT_UNAVAILABLE = "audit_unavailable"
    SHARED_STATE_SILENT = "shared_state_silent"
    DRAINING = "draining"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the sandbox is told about a Reason: never about the secret or another tenant."""

    status: int
    message: str
    hint: str


_R = Reason
_OPERATOR = "Retrying will not help. Ask the operator of this sandbox to allow it in the policy."
_RETRY = "This is not your request's fault. Wait a little, then retry."

EXPLANATIONS: dict[Reason, Explanation] = {
    _R.ORIGIN_UNKNOWN: Explanation(407, "this connection belongs to no live session", "Use the proxy address that your session was given. If the session has ended, its operator must open a new one."),
    _R.ORIGIN_CLASS_REFUSED: Explanation(401, "this credential may not be used over this kind of connection", "The policy requires a stronger proof of which sandbox is asking (for example its own socket). " + _OPERATOR),
    _R.ISOLATION_REFUSED: Explanation(401, "this credential may not be used from a sandbox with this kind of isolation", _OPERATOR),
    _R.SESSION_EXPIRED: Explanation(401, "the session has reached its maximum age", "The operator of this sandbox must open a new session."),
    _R.LEASE_LAPSED: Explanation(401, "the session's lease was not renewed in time", "The program that runs this sandbox must open a new session; a lapsed lease cannot be renewed."),
    _R.SESSION_REVOKED: Explanation(401, "the session has been revoked", "An operator ended this session on purpose. Retrying will not help."),
    _R.POLICY_MISSING: Explanation(403, "no usable policy is loaded for this session", _OPERATOR),
    _R.HOST_NOT_ALLOWED: Explanation(403, "no rule of the policy allows this host", _OPERATOR),
    _R.PORT_NOT_ALLOWED: Explanation(403, "the policy does not allow this port on this host", _OPERATOR),
    _R.METHOD_NOT_ALLOWED: Explanation(403, "the policy does not allow this method on this host", _OPERATOR),
    _R.PATH_NOT_ALLOWED: Explanation(403, "the policy does not allow this method and path on this host", _OPERATOR),
    _R.PLAIN_HTTP_REFUSED: Explanation(403, "the policy does not allow plain HTTP to this host", "Use https://. " + _OPERATOR),
    _R.PROTOCOL_REFUSED: Explanation(403, "this protocol or protocol switch is not allowed", _OPERATOR),
    _R.HOST_FORM_REFUSED: Explanation(403, "the host is not written in its canonical form", "Write the host name in lower-case ASCII without trailing dot, user information or unusual number formats."),
    _R.PATH_FORM_REFUSED: Explanation(403, "the path could be read in more than one way", "Send a path without dot segments, encoded slashes, backslashes or control characters."),
    _R.HEADER_FORM_REFUSED: Explanation(403, "a header could be read in more than one way", "Send each header once, without control characters."),
    _R.FRAMING_REFUSED: Explanation(403, "the message framing could be read in more than one way", "Send either one Content-Length or chunked Transfer-Encoding."),
    _R.AUTHORITY_MISMATCH: Explanation(421, "CONNECT target, TLS server name, Host header and the address that was dialled are not all of the same host", "Open a new connection to the host that the request is for."),
    _R.ADDRESS_REFUSED: Explanation(403, "this name resolves to an address that must not be reached from a sandbox", "Retrying will not help, and no policy can allow it. The operator of this sandbox would have to add the address, which the audit log names, to COATCHECK_ALLOWED_NETWORKS."),
    _R.OWN_SURFACE: Explanation(403, "the proxy's own interfaces cannot be reached through the proxy", "Retrying will not help."),
    _R.BODY_TOO_LARGE: Explanation(413, "the body is larger than the policy allows", _OPERATOR),
    _R.BODY_UNREADABLE: Explanation(403, "the body could not be read as its type and encoding declare", "Send an unencoded JSON or form body."),
    _R.PLANE_CANNOT: Explanation(403, "this proxy cannot carry out what the policy asks for this request", _OPERATOR),
    _R.HANDLE_MISSING: Explanation(401, "this request needs a credential handle and carries none", "Send the value from your environment variable exactly as it is; Coatcheck replaces it with the real credential."),
    _R.HANDLE_MALFORMED: Explanation(401, "the credential handle is damaged", "Send the value from your environment variable exactly as it is."),
    _R.HANDLE_UNKNOWN: Explanation(401, "the credential handle was not issued by this proxy", "Send the value from your environment variable exactly as it is."),
    _R.HANDLE_EXPIRED: Explanation(401, "the credential handle has expired", "Fetch a new handle, or ask the operator of this sandbox for a new session."),
    _R.HANDLE_REVOKED: Explanation(401, "the credential handle has been revoked", "An operator revoked it on purpose. Retrying will not help."),
    _R.HANDLE_STOLEN: Explanation(401, "the credential handle belongs to another sandbox", "This attempt was recorded. Retrying will not help."),
    _R.HANDLE_STALE: Explanation(401, "the credential handle belongs to an earlier life of this sandbox", "Read the handle again from the environment or the metadata service."),
    _R.HANDLE_OUT_OF_SCOPE: Explanation(403, "this session was not granted this credential", _OPERATOR),
    _R.HANDLE_WRONG_HOST: Explanation(403, "this credential may not be sent to this host, method or path", "This attempt was recorded. " + _OPERATOR),
    _R.HANDLE_MISPLACED: Explanation(403, "a credential handle is in a place where the policy does not expect it", "Send the handle only where the API expects its credential. This attempt was recorded."),
    _R.SECRET_PROBED: Explanation(403, "parts of this credential's secret were redacted from this session's responses too often", "This session may no longer use it. " + _OPERATOR),
    _R.SIGNATURE_REFUSED: Explanation(401, "the request's AWS signature is not valid", "Sign with the key pair and session token from your environment variables, with a correct clock, and send the request unchanged."),
    _R.APPROVAL_REFUSED: Explanation(403, "a person denied this request", "Do not repeat it. Do something else, or talk to the operator of this sandbox."),
    _R.APPROVAL_TIMEOUT: Explanation(403, "this request needs a person's approval, and no one answered in time", "No answer means denial. Tell the operator of this sandbox what you need. Sending the same request again asks again."),
    _R.RATE_LIMITED: Explanation(429, "a request limit of the policy is used up", "Wait as long as Retry-After says."),
    _R.CONCURRENCY_LIMITED: Explanation(429, "too many requests are running at once", "Wait for running requests to end."),
    _R.BYTES_LIMITED: Explanation(429, "a byte limit of the policy is used up", "Wait as long as Retry-After says."),
    _R.CAPACITY: Explanation(503, "the proxy is at its connection limit", _RETRY),
    _R.SECRET_UNAVAILABLE: Explanation(503, "the secret store cannot be reached", _RETRY),
    _R.SECRET_MISSING: Explanation(503, "the secret store has no such secret", "Retrying will not help. Ask the operator of this sandbox to store the secret that the policy names."),
    _R.SECRET_UNUSABLE: Explanation(503, "the stored secret cannot be injected into a request", "Retrying will not help. The stored secret is empty, shorter than 16 characters, or holds a character that cannot be sent there. `coatcheck doctor` tells the operator which."),
    _R.TOO_MANY_SECRETS: Explanation(503, "the policies name more secrets than responses can be searched for", "Retrying will not help. The operator must divide the work among several tenants."),
    _R.UPSTREAM_UNREACHABLE: Explanation(502, "the upstream host cannot be reached", _RETRY),
    _R.UPSTREAM_TLS: Explanation(502, "the upstream host could not prove its identity by TLS", "Retrying will not help until the upstream's certificate is corrected."),
    _R.UPSTREAM_TIMEOUT: Explanation(502, "the upstream host did not answer in time", _RETRY),
    _R.UPSTREAM_RESPONSE_REFUSED: Explanation(502, "the upstream's response was refused", "The response broke a rule that protects credentials. Retrying will not help."),
    _R.CLIENT_GONE: Explanation(502, "the client closed the connection before the response was complete", "Nothing to do; this is only recorded."),
    _R.AUDIT_UNAVAILABLE: Explanation(503, "the audit log cannot be written, so nothing may leave", _RETRY),
    _R.SHARED_STATE_SILENT: Explanation(503, "the proxy cannot learn what its fleet has revoked, so nothing may leave", _RETRY),
    _R.DRAINING: Explanation(503, "the proxy is shutting down", _RETRY),
    _R.INTERNAL_ERROR: Explanation(503, "the proxy could not decide, so nothing left", "The failure was recorded. " + _RETRY),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deny:
    """Refused. `detail` is for the audit log and the operator; it holds no secret and no handle."""

    reason: Reason
    detail: str = ""
    rule: str | None = None
    retry_after: float | None = None
    """Seconds, for limits."""
    challenge: str | None = None
    """A WWW-Authenticate value, so that clients such as git send what they hold."""
    alarm: bool = False
    """True where the attempt itself is suspicious (I4): a handle stolen, misplaced, or elsewhere."""
    ungranted: str = ""
    """The credential that the session does not have, or has lost, if that is why."""

    @property
    def status(self) -> int:
        """Of the HTTP answer: 401 with a challenge, which clients only answer then (RFC 9110 11.6.1)."""
        return 401 if self.challenge is not None else EXPLANATIONS[self.reason].status
