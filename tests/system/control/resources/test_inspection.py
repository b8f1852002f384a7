"""The control API's inspections: who may ask, and what is answered where there is nothing to search."""

from tests.system.control.conftest import Control

UNKNOWN = "sbx_0123456789abcdef"


async def test_an_unknown_sandbox_is_not_found(control: Control) -> None:
    """For callers that may inspect; whether one exists is not told to others, either."""
    for caller in ("operator", "ci-launcher", "acme-operator"):
        for method, path in (("POST", ""), ("GET", ""), ("POST", "/cancel")):
            answer = await control.ask(method, f"/v1/sandboxes/{UNKNOWN}/inspect{path}", caller=caller)
            assert (answer.status, answer.reason) == (404, "unknown_sandbox")


async def test_an_auditor_reads_statements_and_starts_nothing(control: Control) -> None:
    """A sandbox stands still while it is searched."""
    path = f"/v1/sandboxes/{UNKNOWN}/inspect"
    assert (await control.ask("POST", path, caller="auditor")).reason == "forbidden"
    assert (await control.ask("POST", f"{path}/cancel", caller="auditor")).reason == "forbidden"
    assert (await control.ask("GET", path, caller="auditor")).reason == "unknown_sandbox"
    assert (await control.ask("POST", path)).status == 401


async def test_an_inspection_takes_no_body(control: Control) -> None:
    """What is looked for is the policy's business: a caller can neither add nor leave out anything."""
    answer = await control.ask(
        "POST", f"/v1/sandboxes/{UNKNOWN}/inspect", caller="operator", body={"credentials": []}
    )
    assert answer.reason == "malformed"
