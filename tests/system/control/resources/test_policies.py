"""Policies in force, explained and reloaded."""

from pathlib import Path

import pytest

from coatcheck.decision.message import Destination, Peer, RequestHead
from coatcheck.policy.shadow import Shadow
from tests.policy.bundle.bundles import YAML, put
from tests.system.control.conftest import Control
from tests.system.planes.conftest import POLICY

NONE = "ses_" + "0" * 24


async def explained(control: Control, **question: object) -> dict[str, object]:
    answer = await control.ask("POST", "/v1/policies/explain", caller="ci-launcher", body=question)
    assert answer.status == 200, answer.body
    said: dict[str, object] = answer.json
    return said


async def test_a_request_is_explained(control: Control) -> None:
    """For a policy with all its credentials, for a session with its own."""
    url = "https://api.openai.com/v1/models?key=1"
    said = await explained(control, policy="default", method="GET", url=url)
    assert said["allowed"] is True and said["reason"] is None
    assert said["request"] == "GET https://api.openai.com/v1/models"
    session = await control.session(credentials=["anthropic"], listen="none")
    mine = await explained(control, session=session, method="GET", url=url)
    assert "was not granted it" in str(mine["credentials"])
    refused = await explained(control, policy="default", method="DELETE", url=url)
    assert (refused["allowed"], refused["reason"]) == (False, "method_not_allowed")
    steered = await explained(
        control, policy="default", method="POST", url=url, headers=[["X-HTTP-Method-Override", "DELETE"]]
    )
    assert steered["allowed"] is False


@pytest.mark.parametrize(
    ("question", "status"),
    [
        ({"method": "GET", "url": "https://api.openai.com/"}, 400),
        (
            {"method": "GET", "url": "https://a.example/", "policy": "default", "session": "ses_" + "0" * 24},
            400,
        ),
        ({"method": "GET", "url": "https://a.example/", "session": NONE}, 404),
        ({"method": "GET", "url": "https://a.example/", "policy": "other"}, 404),
        ({"method": "GET", "url": "https://user@a.example/", "policy": "default"}, 400),
        ({"method": "GET", "url": "https://127.1/", "policy": "default"}, 400),
        ({"method": "GET", "url": "https://[::1/", "policy": "default"}, 400),
        ({"method": "GET", "url": "ftp://a.example/", "policy": "default"}, 400),
        ({"method": "get", "url": "https://a.example/", "policy": "default"}, 400),
    ],
)
async def test_a_question_without_an_answer_is_refused(
    control: Control, question: dict[str, str], status: int
) -> None:
    """Readably."""
    answer = await control.ask("POST", "/v1/policies/explain", caller="ci-launcher", body=question)
    assert answer.status == status
    assert answer.json["error"]["hint"]


async def test_a_launcher_knows_its_own_policies_only(control: Control) -> None:
    """Others do not exist for it."""
    policies = control.daemon.settings.policy
    (policies / "other.yaml").write_text("version: 1\nowner: others\n")
    (policies / "other.yaml").chmod(0o644)
    reloaded = await control.ask("POST", "/v1/policies/reload", caller="operator")
    assert [each["name"] for each in reloaded.json["policies"]] == ["default", "other"]
    mine = await control.ask("GET", "/v1/policies", caller="ci-launcher")
    assert [each["name"] for each in mine.json["policies"]] == ["default"]
    assert mine.json["policies"][0]["owner"] == "tests"
    answer = await control.ask(
        "POST",
        "/v1/policies/explain",
        caller="ci-launcher",
        body={"method": "GET", "url": "https://a.example/", "policy": "other"},
    )
    assert answer.status == 404


async def test_a_bad_policy_is_not_taken_over(control: Control) -> None:
    """The answer has line and column, and the old one stays in force."""
    before = (await control.ask("GET", "/v1/policies", caller="auditor")).json
    (control.daemon.settings.policy / "default.yaml").write_text(
        POLICY.replace("owner: tests", "ownr: tests")
    )
    answer = await control.ask("POST", "/v1/policies/reload", caller="operator")
    assert (answer.status, answer.reason) == (409, "policy_refused")
    assert "default.yaml" in answer.json["error"]["message"]
    after = (await control.ask("GET", "/v1/policies", caller="auditor")).json
    assert after["policies"] == before["policies"] and before["refused"] is None
    assert 'unknown key "ownr"' in after["refused"]
    # What is wrong with others' files is not for a launcher that was granted some policies only.
    mine = (await control.ask("GET", "/v1/policies", caller="ci-launcher")).json
    assert mine["policies"] == before["policies"] and mine["refused"] is None


async def test_candidates_and_what_they_would_change_are_listed(control: Control, tmp_path: Path) -> None:
    """For those who may see every policy; a launcher of one learns nothing of the others."""
    candidate = put(tmp_path / "default.yaml", YAML.replace(b"api.openai.com", b"more.example.org"))
    daemon = control.daemon
    daemon.exchange.shadow = Shadow(candidate, None, daemon.exchange.tell, daemon.metrics.compared)
    daemon.exchange.shadow.look()
    sandbox = await daemon.sandbox()
    host = Destination("https", "more.example.org", 443)
    peer = Peer("own", (sandbox.session.origin,))
    daemon.exchange.receive(peer, host, RequestHead("GET", "/v1/models", ()), http2=False)
    shadow = (await control.ask("GET", "/v1/policies", caller="auditor")).json["shadow"]
    assert [each["name"] for each in shadow["policies"]] == ["default"] and shadow["refused"] is None
    assert {result for result, count in shadow["results"].items() if count} == {"allows"}
    assert (await control.ask("GET", "/v1/policies", caller="ci-launcher")).json["shadow"] is None
    scraped = daemon.metrics.render().decode()
    assert 'coatcheck_shadow_requests_total{result="allows"} 1.0' in scraped
    assert [each["change"] for each in daemon.records() if each["type"] == "shadow"] == ["allows"]
