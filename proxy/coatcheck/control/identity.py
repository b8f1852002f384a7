"""Who sent a request, by what cannot be claimed: the kernel's word, TLS, or a token."""

import socket
import struct
from dataclasses import dataclass

from aiohttp.web_request import BaseRequest

from coatcheck.control.caller import Caller
from coatcheck.control.grants import Grants
from coatcheck.control.problem import ControlProblem, Refusal

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7))


@dataclass(frozen=True, slots=True)
class Channel:
    """What a connection proves before it says a word."""

    uid: int | None
    """Of the process that connected to the Unix socket; None over TCP."""
    certificate: bytes | None
    """DER form of a client certificate that TLS has verified."""


def uid_of(connection: socket.socket) -> int:
    """The peer's user id *when it connected*: the socket may have been handed on since, which only
    the connecting process can do."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(packed)[1]
    return uid


def channel_of(request: BaseRequest) -> Channel:
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has disconnected")
    connection = transport.get_extra_info("socket")
    if connection.family == socket.AF_UNIX:
        return Channel(uid_of(connection), None)
    tls = transport.get_extra_info("ssl_object")
    return Channel(None, tls.getpeercert(binary_form=True) if tls is not None else None)


def identify(channel: Channel, authorization: str | None, grants: Grants) -> Caller:
    """The caller, or ControlProblem(UNAUTHENTICATED).

    A token that is sent is what counts, also on the Unix socket: a wrong one is never ignored. It must
    not contradict a certificate.
    """
    by_certificate = grants.of_certificate(channel.certificate) if channel.certificate is not None else None
    if authorization is not None:
        caller = _of_token(authorization, grants)
        if by_certificate is not None and by_certificate != caller:
            raise _unauthenticated("the token and the client certificate belong to different callers")
        return caller
    if by_certificate is not None:
        return by_certificate
    if channel.uid is not None:
        by_uid = grants.of_uid(channel.uid)
        if by_uid is None:
            raise _unauthenticated(f"uid {channel.uid} is not a caller of the control API")
        return by_uid
    raise _unauthenticated(
        "this client certificate belongs to no caller"
        if channel.certificate is not None
        else "the request proves no caller"
    )


def _of_token(authorization: str, grants: Grants) -> Caller:
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise _unauthenticated("the Authorization header holds no bearer token")
    caller = grants.of_token(token.strip())
    if caller is None:
        raise _unauthenticated("the token belongs to no caller")
    return caller


def _unauthenticated(message: str) -> ControlProblem:
    return ControlProblem(
        Refusal.UNAUTHENTICATED,
        message,
        "A sandbox is never a caller. Others are listed in the daemon's control_uids or grants file.",
    )
