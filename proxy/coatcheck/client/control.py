"""A small client of the control API, for the command and for launchers: one call, one answer.

It knows the API's paths and nothing of the daemon. It uses neither proxies nor netrc nor redirects.
"""

import http.client
import json
import socket as sockets
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from coatcheck.platform.errors import CoatcheckError

TIMEOUT_SECONDS: Final = 35.0
"""For a whole answer: a little more than the daemon gives itself."""
MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes. A page of a thousand sessions has about 1 MiB."""
_PAGE: Final = 500

type Answer = dict[str, Any]
"""As docs/control-api.md describes it. It may hold handles: do not log it."""
type Answers = list[Answer]

KEEPING_SECONDS: Final = 400.0
"""Where a sandbox's memory is written or read: the daemon gives itself six minutes."""


class ControlError(CoatcheckError):
    """The daemon refused, or cannot be reached. `reason` is the API's own word, or `unreachable`."""

    def __init__(self, message: str, hint: str, reason: str = "unreachable", status: int = 0) -> None:
        super().__init__(message, hint)
        self.reason = reason
        self.status = status
        """HTTP status; 0 when there was no answer."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class ControlClient:
    """Either `socket`, the daemon's Unix socket, or `url` with what proves the caller. Thread-safe: each
    call has a connection of its own.

    `token` is a bearer token; `ca_file` holds PEM roots for the daemon's certificate; `certificate` is a
    PEM file of the caller's own certificate and key.
    """

    def __init__(
        self,
        socket: Path | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        ca_file: Path | None = None,
        certificate: Path | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        if (socket is None) == (url is None):
            raise ValueError("give either socket or url")
        parts = urlsplit(url or "")
        if url is not None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("the control API's URL must look like https://host:port")
        if parts.scheme == "http" and token is not None and parts.hostname not in _LOOPBACK:
            raise ValueError("a token is not sent over plain HTTP to another machine; use https://")
        self._socket = socket
        self._url = parts
        self._token = token
        self._timeout = timeout
        self.tls: ssl.SSLContext | None = None
        """What `https` connections use, here and for what streams beside us."""
        if parts.scheme == "https":
            self.tls = ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
            if certificate is not None:
                self.tls.load_cert_chain(certificate)

    def __repr__(self) -> str:
        return f"<ControlClient {self._socket or self._url.netloc}>"

    # --- sessions ------------------------------------------------------------------------------------

    def open_session(
        self,
        *,
        tenant: str,
        subject: str,
        policy: str,
        credentials: Sequence[str] | None = None,
        isolation: str = "none",
        lease_seconds: float | None = None,
        max_age: float | None = None,
        origin: Mapping[str, str] | None = None,
        listen: str | None = None,
    ) -> Answer:
        """`{session, lease_expires_at, handles, environment, proxy}`; the handles are shown only here."""
        asked = {
            "tenant": tenant,
            "subject": subject,
            "policy": policy,
            "credentials": list(credentials) if credentials is not None else None,
            "isolation": isolation,
            "lease_seconds": lease_seconds,
            "max_age": max_age,
            "origin": dict(origin) if origin is not None else None,
            "listen": listen,
        }
        return self._post("/v1/sessions", asked)

    def renew(self, session: str, lease_seconds: float | None = None) -> Answer:
        """`{session, lease_expires_at}`. A session that is over is not revived: ControlError."""
        return self._post(_path(session, "renew"), {"lease_seconds": lease_seconds})

    def rebind(self, session: str) -> Answer:
        """`{session, handles, environment}`: the sandbox has begun a new life, for which the session goes on
        with these handles alone. Those issued before are refused, and what runs on one is cut off."""
        return self._post(_path(session, "rebind"), {})

    def revoke(self, session: str, why: str | None = None) -> Answer:
        """`{session}`, once the revocation is on disk."""
        return self._post(_path(session, "revoke"), {"why": why})

    def end(self, session: str) -> Answer:
        """`{session}`. For a sandbox that is gone, in order."""
        return self._post(_path(session, "end"), {})

    def show(self, session: str) -> Answer:
        """`{session, handles, proxy}`; handles without their values."""
        return self._call("GET", _path(session))

    def list(
        self,
        *,
        tenant: str | None = None,
        subject: str | None = None,
        policy: str | None = None,
        status: str | None = None,
        opened_by: str | None = None,
    ) -> Answers:
        """All sessions that the caller may see and that fit, by id."""
        wanted = {
            "tenant": tenant,
            "subject": subject,
            "policy": policy,
            "status": status,
            "opened_by": opened_by,
        }
        query = {name: value for name, value in wanted.items() if value is not None} | {"limit": str(_PAGE)}
        found: Answers = []
        while True:
            page = self._call("GET", f"/v1/sessions?{urlencode(query)}")
            found += page["sessions"]
            if page["next"] is None:
                return found
            query["after"] = page["next"]

    def check(self, session: str) -> Answers:
        """What of the session's credentials cannot be used: store, credential (None: all of it), message,
        hint."""
        found: Answers = self._post(_path(session, "check"), {})["troubles"]
        return found

    def refusals(self, session: str) -> Answer:
        """`{refusals, missed}`: what was lately refused to it, each with the rule that would allow it."""
        return self._call("GET", _path(session, "refusals"))

    # --- handles -------------------------------------------------------------------------------------

    def mint(self, session: str, credential: str, ttl_seconds: float | None = None) -> Answer:
        """`{credential, value, env, expires_at, jti, environment}`; the value is shown only here."""
        return self._post(_path(session, "handles"), {"credential": credential, "ttl_seconds": ttl_seconds})

    def revoke_handle(self, session: str, jti: str, why: str | None = None) -> Answer:
        """`{jti}`, once the revocation is on disk."""
        return self._post(_path(session, "handles", jti, "revoke"), {"why": why})

    def revoke_many(
        self,
        *,
        tenant: str | None = None,
        subject: str | None = None,
        policy: str | None = None,
        credential: str | None = None,
        everything: bool = False,
        why: str | None = None,
    ) -> int:
        """How many sessions are over, or have lost `credential`, once that is on disk."""
        named = {"tenant": tenant, "subject": subject, "policy": policy, "credential": credential}
        return int(self._post("/v1/revocations", {**named, "everything": everything, "why": why})["sessions"])

    # --- approvals -------------------------------------------------------------------------------------

    def approvals(self) -> Answers:
        """Requests that wait for an approval, oldest first."""
        waiting: Answers = self._call("GET", "/v1/approvals")["approvals"]
        return waiting

    def answer_approval(
        self, approval: str, answer: str, *, remember_seconds: float = 0.0, person: str | None = None
    ) -> Answer:
        """`{approval, approver}`, once the answer (`yes` or `no`) is recorded and counts."""
        said = {"answer": answer, "remember_seconds": remember_seconds, "person": person}
        return self._post(f"/v1/approvals/{quote(approval, safe='')}", said)

    def page_link(self) -> Answer:
        """`{url, page, expires_in}`: `url` logs this caller in on the page, once."""
        return self._post("/v1/page-links", {})

    # --- policies and health ---------------------------------------------------------------------------

    def policies(self) -> Answers:
        """The policies in force: name, owner, sha256, credentials, rules."""
        listed: Answers = self.policy_list()["policies"]
        return listed

    def policy_list(self) -> Answer:
        """`policies`, and beside them `bundle`, which they came from, and what was `refused` since."""
        return self._call("GET", "/v1/policies")

    def explain(
        self,
        session: str | None,
        method: str,
        url: str,
        *,
        policy: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """`{allowed, reason, rules, credentials, text, …}` of a request, for a session or a policy."""
        asked = {
            "method": method,
            "url": url,
            "session": session,
            "policy": policy,
            "headers": [list(pair) for pair in headers],
        }
        return self._post("/v1/policies/explain", asked)

    def reload(self) -> Answers:
        """Read policies and grants again; the policies in force. A bad one is a ControlError."""
        listed: Answers = self._post("/v1/policies/reload", {})["policies"]
        return listed

    def health(self) -> Answer:
        """`{status, plane_age_seconds}`, also when the daemon is unwell."""
        return self._call("GET", "/healthz", unwell=True)

    def status(self) -> Answer:
        """`{version, pid, ready, missing, sessions, facts, stores}` of the daemon."""
        return self._call("GET", "/v1/status")

    def readiness(self) -> Answer:
        """`{ready, missing}`."""
        return self._call("GET", "/readyz", unwell=True)

    # --- sandboxes -----------------------------------------------------------------------------------

    def create_sandbox(self, **wanted: Any) -> Answer:
        """The sandbox, starting. `wanted` as docs/control-api.md names it: tenant, subject, policy, …"""
        made: Answer = self._post("/v1/sandboxes", wanted)["sandbox"]
        return made

    def sandboxes(self, *, state: str | None = None) -> Answers:
        """All sandboxes that the caller may see, by id; those that ended are kept for a while."""
        query = f"?{urlencode({'state': state})}" if state is not None else ""
        listed: Answers = self._call("GET", f"/v1/sandboxes{query}")["sandboxes"]
        return listed

    def sandbox(self, sandbox: str, wait_seconds: int = 0) -> Answer:
        """It as it is now, or once it no longer starts, after `wait_seconds` (at most 20) at the latest."""
        shown: Answer = self._call("GET", f"{_sandbox(sandbox)}?wait_seconds={wait_seconds}")["sandbox"]
        return shown

    def kill_sandbox(self, sandbox: str, why: str | None = None) -> Answer:
        """It as it ended. Its sessions are over; state `ending` if it takes longer than 20 s to be gone."""
        return self._changed(sandbox, "kill", {"why": why})

    def pause_sandbox(self, sandbox: str) -> Answer:
        return self._changed(sandbox, "pause")

    def resume_sandbox(self, sandbox: str) -> Answer:
        return self._changed(sandbox, "resume")

    def scale_sandbox(self, sandbox: str, memory_mib: int | None = None, cpus: int | None = None) -> Answer:
        """Another size while it runs; what is left out stays: `memory_mib` and `cpus` as they are now."""
        return self._post(f"{_sandbox(sandbox)}/scale", {"memory_mib": memory_mib, "cpus": cpus})

    def size_sandbox(self, sandbox: str, memory_mib: int, cpus: int, by: str) -> Answer:
        """For its supervisor: what it counts for from now on. ControlError when there is no room for that."""
        said = {"memory_mib": memory_mib, "cpus": cpus, "by": by}
        sized: Answer = self._post(f"{_sandbox(sandbox)}/size", said)["sandbox"]
        return sized

    def events(self, after: int | None = None, sandbox: str | None = None, wait_seconds: int = 0) -> Answer:
        """`{events, next, missed}`: what happened to sandboxes after that number; None: from now on."""
        asked = {"after": after, "sandbox": sandbox, "wait_seconds": wait_seconds}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return self._call("GET", f"/v1/events?{query}")

    def take_snapshot(self, sandbox: str, name: str) -> Answer:
        """Save it under a name; it goes on. Answered when it is on the disk."""
        asked = {"name": name}
        taken: Answer = self._post(f"{_sandbox(sandbox)}/snapshots", asked, KEEPING_SECONDS)["snapshot"]
        return taken

    def snapshots(self, sandbox: str) -> Answers:
        """What was saved of it, the oldest first."""
        listed: Answers = self._call("GET", f"{_sandbox(sandbox)}/snapshots")["snapshots"]
        return listed

    def remove_snapshot(self, sandbox: str, name: str) -> Answers:
        """The others."""
        path = f"{_sandbox(sandbox)}/snapshots/{quote(name, safe='')}"
        left: Answers = self._call("DELETE", path)["snapshots"]
        return left

    def fork_sandbox(self, sandbox: str, count: int = 1, snapshot: str | None = None) -> Answers:
        """Copies with sessions of their own, once they run; of a snapshot, or as it is."""
        asked = {"count": count, "snapshot": snapshot}
        made: Answers = self._post(f"{_sandbox(sandbox)}/fork", asked, KEEPING_SECONDS)["sandboxes"]
        return made

    def restore_sandbox(self, sandbox: str, snapshot: str | None = None) -> Answer:
        """It goes on from a snapshot (the newest), whatever became of it since."""
        return self._changed(sandbox, "restore", {"snapshot": snapshot})

    def sleep_sandbox(self, sandbox: str) -> Answer:
        return self._changed(sandbox, "sleep")

    def wake_sandbox(self, sandbox: str) -> Answer:
        return self._changed(sandbox, "wake")

    def inspect_sandbox(self, sandbox: str) -> Answer:
        """Begin the search of a sandbox for secrets; how far it is, as `inspection` says it."""
        return self._post(f"{_sandbox(sandbox)}/inspect", {})

    def inspection(self, sandbox: str) -> Answer:
        """`{state, ended, searched_bytes, problem, signed, …}` of its last inspection."""
        return self._call("GET", f"{_sandbox(sandbox)}/inspect")

    def cancel_inspection(self, sandbox: str) -> Answer:
        """The same, once the sandbox runs again."""
        return self._post(f"{_sandbox(sandbox)}/inspect/cancel", {})

    def report_sandbox(self, sandbox: str, state: str, ending: str | None = None, detail: str = "") -> Answer:
        """For supervisors: how it is. Renews the leases of its sessions."""
        said = {"state": state, "ending": ending, "detail": detail}
        reported: Answer = self._post(f"{_sandbox(sandbox)}/report", said)["sandbox"]
        return reported

    def may_save_sandbox(self, sandbox: str) -> Answer:
        """For supervisors: refused when policy lets nobody save it any more."""
        asked: Answer = self._post(f"{_sandbox(sandbox)}/may-save", {})["sandbox"]
        return asked

    # --- one call ------------------------------------------------------------------------------------

    def _changed(self, sandbox: str, how: str, asked: Mapping[str, Any] | None = None) -> Answer:
        now: Answer = self._post(f"{_sandbox(sandbox)}/{how}", asked or {}, KEEPING_SECONDS)["sandbox"]
        return now

    def _post(self, path: str, asked: Mapping[str, Any], seconds: float | None = None) -> Answer:
        given = {name: value for name, value in asked.items() if value is not None}
        return self._call("POST", path, json.dumps(given).encode(), seconds=seconds)

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        unwell: bool = False,
        seconds: float | None = None,
    ) -> Answer:
        headers = {"Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(seconds or self._timeout)
        try:
            try:
                connection.request(method, path, body, headers)
            except BrokenPipeError:
                pass  # it answered before it had read all, and that answer is there to be read
            response = connection.getresponse()
            content = response.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        answer = _parse(content)
        if response.status < 300 or (unwell and answer is not None and "error" not in answer):
            if answer is None:
                raise ControlError("the daemon's answer is not JSON", "Is this the control API's address?")
            return answer
        raise _refusal(response.status, answer)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._socket is not None:
            return _UnixConnection(self._socket, timeout)
        host, port = self._url.hostname or "", self._url.port
        if self.tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self.tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _unreachable(self, error: Exception) -> ControlError:
        where = str(self._socket) if self._socket is not None else self._url.netloc
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            hint = "Is the daemon running? `coatcheck serve` starts it; COATCHECK_CONTROL_SOCKET names it."
        elif isinstance(error, PermissionError):
            hint = "Only the daemon's user and those in control_uids or the grants file may use the socket."
        else:
            hint = "See the daemon's log."
        return ControlError(f"cannot talk to the daemon at {where}: {what}", hint)


_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _sandbox(sandbox: str) -> str:
    return f"/v1/sandboxes/{quote(sandbox, safe='')}"


def _path(session: str, *parts: str) -> str:
    return "/v1/sessions/" + "/".join(quote(part, safe="") for part in (session, *parts))


def _parse(content: bytes) -> Answer | None:
    if len(content) > MAX_ANSWER:
        return None
    try:
        answer = json.loads(content)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _refusal(status: int, answer: Answer | None) -> ControlError:
    error = answer.get("error") if answer is not None else None
    if not isinstance(error, dict):
        return ControlError(
            f"the daemon answered with status {status}", "Is this the control API's address?", "", status
        )
    said = {name: str(error.get(name, "")) for name in ("message", "hint", "reason")}
    return ControlError(said["message"], said["hint"], said["reason"], status)
