"""What a SIEM finds in the events of each class."""

from coatcheck.telemetry.events import Outcome
from tests.telemetry.audit.test_ocsf import REPEATED, told
from tests.telemetry.samples import COMPLETION, DECISION, DENIED, ENDED, OPENED, POLICY


def test_a_verdict_says_what_was_done_with_what() -> None:
    """Allowed and blocked, by numbers that SIEMs have rules for; the reason is the status code."""
    allowed, denied = told(DECISION), told(DENIED)
    assert (allowed["action_id"], allowed["disposition_id"], allowed["status_id"]) == (1, 1, 1)
    assert (denied["action_id"], denied["disposition_id"], denied["status_id"]) == (2, 2, 2)
    assert denied["status_code"] == "host_not_allowed" and denied["severity_id"] == 2
    assert allowed["activity_id"] == 6 and allowed["http_request"]["http_method"] == "POST"
    assert allowed["dst_endpoint"] == {"hostname": "api.example.com", "port": 443}
    assert allowed["firewall_rule"] == {"name": "model calls"}
    assert allowed["time"] == 1_760_000_000_250
    assert told(DECISION, outcome=Outcome.DENY, alarm=True, reason="handle_misplaced")["severity_id"] == 4


def test_refusals_that_were_counted_are_refused_connections() -> None:
    """None of their requests was kept, so they are no HTTP activity; how many and since when is there."""
    found = told(REPEATED)
    assert (found["class_uid"], found["activity_id"], found["action_id"]) == (4001, 5, 2)
    assert (found["count"], found["end_time"] - found["start_time"]) == (70, 10_000)


def test_a_method_without_a_number_is_named() -> None:
    """A SIEM still sees which it was."""
    found = told(DECISION, method="PROPFIND")
    assert (found["activity_id"], found["activity_name"]) == (99, "PROPFIND")


def test_a_request_is_found_again_in_its_completion() -> None:
    """Both carry its number."""
    assert told(DECISION)["http_request"]["uid"] == told(COMPLETION)["http_request"]["uid"]
    assert told(COMPLETION)["traffic"] == {"bytes_out": 10, "bytes_in": 2000}


def test_sessions_log_on_and_off() -> None:
    """A tenant's agent is the user."""
    assert [told(each)["activity_id"] for each in (OPENED, ENDED)] == [1, 2]
    assert told(OPENED)["user"]["name"] == "agent-7" and told(OPENED)["user"]["org"] == {"name": "acme"}


def test_a_refused_policy_is_a_failure() -> None:
    """Its old one stays, and the event says so."""
    assert told(POLICY)["status_id"] == 1
    refused = told(POLICY, loaded=False, detail="line 3: no such key")
    assert refused["status_id"] == 2 and "the old one stays" in refused["message"]
