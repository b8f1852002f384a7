"""How a record of each kind is written in the classes of the Open Cybersecurity Schema Framework 1.4.

What OCSF has no word for stands in `unmapped`, so that nothing of a record is lost. The chain's proof is the
audit log's own: these are copies, and `metadata.uid` says of which record.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

SCHEMA: Final = "1.4.0"

HTTP_ACTIVITY: Final = 4002
NETWORK_ACTIVITY: Final = 4001
AUTHENTICATION: Final = 3002
ENTITY_MANAGEMENT: Final = 3004
DETECTION_FINDING: Final = 2004
APPLICATION_LIFECYCLE: Final = 6002
BASE_EVENT: Final = 0
OTHER: Final = 99
"""The activity that a class has no number for; `activity_name` says which."""

_INFORMATIONAL, _LOW, _HIGH, _CRITICAL = 1, 2, 4, 5
_SUCCESS, _FAILURE = 1, 2
_METHODS: Final = {
    "CONNECT": 1, "DELETE": 2, "GET": 3, "HEAD": 4, "OPTIONS": 5, "POST": 6, "PUT": 7, "TRACE": 8,
}  # fmt: skip
_REFUSE: Final = 5
_LOGON, _LOGOFF = 1, 2
_SESSIONS: Final = {
    "opened": _LOGON, "ended": _LOGOFF, "revoked": _LOGOFF, "lapsed": _LOGOFF, "expired": _LOGOFF,
}  # fmt: skip
_START, _STOP = 3, 4
_LIVES: Final = {
    "created": _START, "running": _START, "ended": _STOP, "started": _START, "ready": _START,
    "stopped": _STOP,
}  # fmt: skip
_PRODUCT: Final = {"name": "Coatcheck", "vendor_name": "Coatcheck", "version": version("coatcheck")}

type Record = Mapping[str, Any]
type Event = dict[str, Any]


def _event(
    record: Record,
    of_class: int,
    activity: int,
    message: str,
    mapped: set[str],
    *,
    name: str = "",
    severity: int = _INFORMATIONAL,
    **more: Any,
) -> Event:
    """What every class has. `mapped`: fields of the record that stand elsewhere than in `unmapped`."""
    metadata: dict[str, Any] = {
        "version": SCHEMA,
        "product": _PRODUCT,
        "log_name": "audit",
        "sequence": record["seq"],
        "uid": f"{record['seq']}:{record['prev'][:16]}",
        "profiles": [profile for profile, key in _PROFILES.items() if key in more],
    }
    if record.get("tenant"):
        metadata["tenant_uid"] = record["tenant"]
    rest = {
        key: value
        for key, value in record.items()
        if key not in mapped | _EVERYWHERE and value not in _NOTHING
    }
    found: Event = {
        "class_uid": of_class,
        "category_uid": of_class // 1000,
        "activity_id": activity,
        "type_uid": of_class * 100 + activity,
        "severity_id": severity,
        "time": _milliseconds(record.get("at")),
        "message": message,
        "metadata": metadata,
        **more,
    }
    if name:
        found["activity_name"] = name
    if rest:
        found["unmapped"] = rest
    return found


_PROFILES: Final = {"security_control": "action_id", "host": "actor"}
"""What a class knows only if its event names the profile, by one attribute of each."""
_EVERYWHERE: Final = {"seq", "prev", "type", "at", "tenant"}
_NOTHING: Final[tuple[object, ...]] = ("", None, [])


def _milliseconds(at: Any) -> int:
    return round(at * 1000) if isinstance(at, int | float) else 0


def _actor(record: Record) -> Event:
    actor: Event = {"session": {"uid": record.get("session", "")}}
    if record.get("subject"):
        actor["user"] = _user(record)
    return actor


def _user(record: Record) -> Event:
    user: Event = {"name": record.get("subject", ""), "type_id": 99, "type": "Agent"}
    if record.get("tenant"):
        user["org"] = {"name": record["tenant"]}
    return user


_OF_DECISIONS: Final = {
    "request_id", "session", "subject", "policy", "policy_hash", "rule", "reason", "detail", "method",
    "destination", "path",
}  # fmt: skip


def decision(record: Record) -> Event:
    denied, method = record["outcome"] == "deny", record["method"]
    target = urlsplit(record["destination"])
    activity = _METHODS.get(method, OTHER)
    where = {
        "hostname": target.hostname or "",
        "port": target.port or (80 if target.scheme == "http" else 443),
    }
    more: Event = {
        "action_id": 2 if denied else 1,
        "disposition_id": 2 if denied else 1,  # Blocked, Allowed
        "status_id": _FAILURE if denied else _SUCCESS,
        "http_request": {
            "uid": record["request_id"],
            "http_method": method,
            "url": where | {"scheme": target.scheme, "path": record["path"]},
        },
        "dst_endpoint": where,
        "src_endpoint": {"uid": record["session"]},
        "actor": _actor(record),
        "policy": {"name": record["policy"], "uid": record["policy_hash"]},
    }
    if record["rule"]:
        more["firewall_rule"] = {"name": record["rule"]}
    if denied:
        more |= {"status_code": record["reason"], "status_detail": record["detail"]}
    verb = "refused" if denied else "allowed with a credential" if record["credentials"] else "allowed"
    return _event(
        record,
        HTTP_ACTIVITY,
        activity,
        f"{verb}: {method} {record['destination']}{record['path']}",
        _OF_DECISIONS,
        name=method if activity == OTHER else "",
        severity=_HIGH if record["alarm"] else _LOW if denied else _INFORMATIONAL,
        **more,
    )


def completion(record: Record) -> Event:
    aborted = record["aborted"]
    more: Event = {
        "status_id": _FAILURE if aborted else _SUCCESS,
        "http_request": {"uid": record["request_id"]},
        "http_response": {"code": record["status"]},
        "traffic": {"bytes_out": record["bytes_up"], "bytes_in": record["bytes_down"]},
        "duration": round(record["seconds"] * 1000),
        "src_endpoint": {"uid": record["session"]},
        "actor": _actor(record),
    }
    if aborted:
        more["status_code"] = aborted
    return _event(
        record,
        HTTP_ACTIVITY,
        OTHER,
        f"aborted: {aborted}" if aborted else f"answered with {record['status']}",
        {"request_id", "status", "bytes_up", "bytes_down", "seconds", "session", "aborted"},
        name="Complete",
        **more,
    )


def session(record: Record) -> Event:
    change = record["change"]
    return _event(
        record,
        AUTHENTICATION,
        _SESSIONS.get(change, OTHER),
        f"session {record['session']} {change}",
        {"session", "subject"},
        name="" if change in _SESSIONS else change,
        user=_user(record),
        session={"uid": record["session"], "issuer": record["caller"]},
        service={"name": "Coatcheck"},
        status_id=_SUCCESS,
    )


def _lifecycle(record: Record, what: str, app: Event, change: str, mapped: set[str]) -> Event:
    return _event(
        record,
        APPLICATION_LIFECYCLE,
        _LIVES.get(change, OTHER),
        f"{what} {change}",
        mapped,
        name="" if change in _LIVES else change,
        app=app,
    )


def sandbox(record: Record) -> Event:
    app = {"name": "sandbox", "uid": record["sandbox"], "vendor_name": "Coatcheck"}
    return _lifecycle(record, f"sandbox {record['sandbox']}", app, record["change"], {"sandbox"})


def daemon(record: Record) -> Event:
    return _lifecycle(record, "daemon", _PRODUCT, record["what"], set())


def slow_decision(record: Record) -> Event:
    title = f"judging a request took {1000 * record['seconds']:.1f} ms"
    return _finding(record, title, _LOW)


def _finding(record: Record, title: str, severity: int) -> Event:
    info = {"title": title, "uid": f"{record['seq']}:{record['prev'][:16]}", "types": [record["type"]]}
    if record.get("detail"):
        info["desc"] = record["detail"]
    return _event(
        record,
        DETECTION_FINDING,
        1,
        title,
        {"detail", "session"},
        severity=severity,
        finding_info=info,
        is_alert=severity != _INFORMATIONAL,
        actor=_actor(record),
    )


def alarm(record: Record) -> Event:
    return _finding(record, f"alarm: {record['reason']}", _HIGH)


def inspection(record: Record) -> Event:
    severity = _CRITICAL if record["findings"] else _INFORMATIONAL
    return _finding(record, f"sandbox {record['sandbox']} searched for secrets: {record['result']}", severity)


def repeated(record: Record) -> Event:
    if record["what"] == "alarm":
        found = alarm(record)
    else:
        found = _event(  # no request of theirs was kept, which HTTP activity wants
            record,
            NETWORK_ACTIVITY,
            _REFUSE,
            f"refused {record['count']} times more: {record['reason']}",
            {"session", "reason"},
            severity=_LOW,
            action_id=2,
            disposition_id=2,
            status_id=_FAILURE,
            status_code=record["reason"],
            src_endpoint={"uid": record["session"]},
            actor=_actor(record),
        )
    return found | {
        "count": record["count"],
        "start_time": _milliseconds(record["since"]),
        "end_time": _milliseconds(record["at"]),
    }


def policy(record: Record) -> Event:
    loaded = record["loaded"]
    return _event(
        record,
        ENTITY_MANAGEMENT,
        3,
        f"policy {record['name']} {'loaded' if loaded else 'refused, the old one stays'}",
        {"name", "sha256", "detail"},
        severity=_INFORMATIONAL if loaded else _LOW,
        entity={"name": record["name"], "type": "Policy", "uid": record["sha256"]},
        status_id=_SUCCESS if loaded else _FAILURE,
        status_detail=record["detail"],
    )


def base(record: Record) -> Event:
    return _event(record, BASE_EVENT, OTHER, f"{record['type']} record", set(), name=record["type"])
