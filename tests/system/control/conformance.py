"""Generated requests to every operation of the running API, and what its document says of the answers."""

from typing import Any

import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coatcheck.control.caller import Action
from coatcheck.control.dispatch import OPERATIONS
from coatcheck.control.openapi import document
from coatcheck.control.operation import Operation, Unread
from tests.system.control.conftest import Control, token_of

CASES = 15
"""For each operation and mode: some four hundred requests in all."""

WHO = {Action.OPEN: "any-origin", Action.END: "any-origin"}
"""Who asks; operators for the rest."""

KNOWN = {
    "policy": "default",
    "credentials": ["openai"],
    "credential": "openai",
    "session": None,
    "backend": "namespace",
    "volumes": [],
    "identities": [{"name": "agent"}],
    "image": None,
    "max_memory_mib": None,
    "max_cpus": None,
    "autoscale": None,
    "parent": None,
    "url": "https://api.openai.com/v1/models",
}
"""Put into valid bodies instead of random names, of which none exists."""

REFUSED_VALUES = ("bad_value", "beyond_limit", "invalid_path", "bad_request", "unknown_identity")

NO_SANDBOX = "sbx_" + 16 * "0"
NEVER_DONE = {
    *("exec", "port", "report_sandbox", "size_sandbox", "may_save_sandbox"),
    *("read_file", "write_file"),
    *("show_inspection", "cancel_inspection", "answer_approval"),
    *(
        "scale_sandbox",
        "take_snapshot",
        "remove_snapshot",
        "fork_sandbox",
        "restore_sandbox",
        "sleep_sandbox",
    ),
}
"""WebSockets, what only a supervisor may say, what depends on what is inside, was inspected, or waits, and
what only a microVM can."""


def check_all(control: Control, mode: str) -> None:
    import schemathesis  # takes seconds: not by every worker that collects tests

    schema = schemathesis.openapi.from_dict(document(OPERATIONS))
    schema.config.update(base_url=control.url)
    by_name = {op.name: op for op in OPERATIONS}
    sandbox = NO_SANDBOX
    with requests.Session() as session:
        session.trust_env = False
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            opened = control.client("any-origin").open_session(
                tenant="acme", subject="a", policy="default", listen="none"
            )
            asked = by_name[operation.definition.raw["operationId"]]
            if asked.query is Unread:
                continue  # whatever comes is the business of the server inside
            if "{sandbox}" in operation.path and mode == "positive":
                sandbox = living_sandbox(control)
            real = {"session": opened["session"]["id"], "jti": opened["handles"]["openai"]["jti"]}
            real |= {"sandbox": sandbox, "port": "1", "rest": "/"}
            if mode == "positive" or operation.body or [*operation.iter_parameters()]:
                seen = check_operation(operation, asked, session, mode, real)
                if mode == "positive" and asked.name not in NEVER_DONE:
                    assert any(status < 300 for status in seen), operation.path


def living_sandbox(control: Control) -> str:
    """One that runs: some operations end it."""
    client = control.client("any-origin")
    for each in client.sandboxes(state="running"):
        return str(each["id"])
    for each in client.sandboxes():
        client.kill_sandbox(each["id"])
    made = client.create_sandbox(tenant="acme", subject="a", policy="default", backend="namespace")
    assert client.sandbox(made["id"], wait_seconds=20)["state"] == "running"
    return str(made["id"])


def check_operation(
    operation: Any,
    asked: Operation,
    session: requests.Session,
    mode: str,
    real: dict[str, str],
) -> set[int]:
    """The statuses that were seen."""
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    token = token_of(WHO.get(asked.action, "operator") if asked.action is not None else "operator")
    # What is inside answers for itself: nothing listens there, and a disk may be full.
    excluded = [positive_data_acceptance, *([not_a_server_error] if asked.passes else [])]
    parameters = {name: value for name, value in real.items() if f"{{{name}}}" in operation.path}
    generated = GenerationMode(mode)
    cases = operation.as_strategy(generated)
    if parameters:
        # A random id names no session; without this, all that was seen would be 404.
        cases = st.one_of(cases, operation.as_strategy(generated, path_parameters=parameters))

    statuses: set[int] = set()

    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def check(case: Any) -> None:
        if mode == "positive" and isinstance(case.body, dict):
            case.body |= {name: value for name, value in KNOWN.items() if name in case.body}
            if asked.name == "create_sandbox":  # what else there is depends on the machine
                case.body["backend"] = "namespace"
        if asked.name == "follow_events" and (case.query or {}).get("wait_seconds") in range(21):
            case.query["wait_seconds"] = 0  # nothing happens while it is asked
        response = case.call(session=session, headers={"Authorization": f"Bearer {token}"})
        case.validate_response(
            response,
            excluded_checks=excluded,
            transport_kwargs={"session": session},
        )
        if mode == "positive" and response.status_code == 400:
            # What its own check would say, but for values that only the daemon's settings and state limit.
            assert response.json()["error"]["reason"] in REFUSED_VALUES
        statuses.add(response.status_code)

    check()
    return statuses
