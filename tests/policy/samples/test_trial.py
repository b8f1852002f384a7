"""A sample gets the answer that the daemon would give: rule, reason, credential, session."""

from pathlib import Path

import pytest

from coatcheck.policy import Failure, load_policy, read_samples, run_samples
from coatcheck.policy.samples.trial import Trial, try_sample

DEFAULT = load_policy("default", (Path(__file__).parents[3] / "policies/default.yaml").read_bytes())
PLACES = load_policy("places", (Path(__file__).parents[2] / "corpus/policies/places.yaml").read_bytes())


def tried(sample: str) -> Trial:
    return try_sample(PLACES, read_samples(f"samples:\n  - {{{sample}, expect: allow}}\n".encode())[0])


def test_a_sample_that_is_answered_otherwise_fails() -> None:
    """With what was expected and what came."""
    data = b"""samples:
  - {request: "GET https://api.openai.com/v1/models", expect: deny, reason: host_not_allowed}
  - {name: named, request: "GET https://api.openai.com/v1/models", expect: allow, rule: openai model calls}
  - {request: "GET https://api.openai.com/v1/models", expect: allow, credentials: [anthropic]}
  - {request: "GET https://evil.test/", expect: allow}
  - {request: "GET https://127.1/", expect: deny, reason: host_not_allowed}
"""
    assert run_samples(DEFAULT, read_samples(data)) == [
        Failure("GET https://api.openai.com/v1/models", "deny host_not_allowed", "allow"),
        Failure("named", "allow by openai model calls", "allow by openai model list"),
        Failure("GET https://api.openai.com/v1/models", "allow with anthropic", "allow with openai"),
        Failure("GET https://evil.test/", "allow", "deny host_not_allowed"),
        Failure("GET (refused host)/", "deny host_not_allowed", "deny host_form_refused"),
    ]


HOST = "https://api.vendor.example"


@pytest.mark.parametrize(
    ("request_", "rule", "credential"),
    [
        ("GET /v1/models", "bearer", "vendor"),
        ("GET /key/x", "keys", "key"),
        ("GET /basic/x", "basic", "basic"),
        ("GET /bots/bot{handle}/getMe", "bots", "segment"),
        ("POST /field/x", "fields", "field"),
        ("GET /shaped/x?y=1", "shapes", "shaped"),
        ("GET /reference/x", "references", "reference"),
        ("GET /optional/x", "optional", "optional"),
        ("GET /strict/x", "strict", "strict"),
        ("GET /walled/x", "walled", "walled"),
    ],
)
def test_every_kind_of_credential_can_be_shown(request_: str, rule: str, credential: str) -> None:
    """Its handle stands where the policy wants it, in the shape that it wants."""
    method, _, target = request_.partition(" ")
    if rule == "strict":
        said = tried(f'request: "{method} {HOST}{target}", session: {{origin: mtls}}')
    else:
        said = tried(f'request: "{method} {HOST}{target}"')
    assert (said.rule, said.reason, said.credentials) == (rule, None, frozenset({credential}))


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ('request: "GET HOST/v1/models", handle: none', "handle_missing"),
        ('request: "GET HOST/v1/models", handle: key', "handle_wrong_host"),
        ('request: "GET HOST/v1/models", handle: walled', "handle_wrong_host"),
        ('request: "GET HOST/v1/models?q={handle}", handle: vendor', "handle_misplaced"),
        ('request: "GET HOST/v1/models", handle: nobody-s', "handle_out_of_scope"),
        ('request: "GET HOST/v1/models", session: {credentials: [key]}', "handle_out_of_scope"),
        ('request: "GET HOST/strict/x"', "origin_class_refused"),
        ('request: "GET HOST/walled/x", session: {isolation: namespace}', "isolation_refused"),
        ('request: "GET HOST/optional/x", session: {origin: bearer}', "origin_class_refused"),
        ('request: "POST HOST/field/x", handle: none', "handle_missing"),
        ('request: "GET HOST/bots/x", handle: segment', "handle_missing"),
        ('request: "DELETE HOST/v1/x"', "method_not_allowed"),
        ('request: "GET https://127.1/"', "host_form_refused"),
    ],
)
def test_a_refusal_has_the_daemon_s_reason(sample: str, reason: str) -> None:
    """Whose handle, whose session, where it stands: what `match` alone does not know."""
    assert tried(sample.replace("HOST", HOST)).reason == reason


def test_a_refusal_can_name_the_rule_that_came_closest() -> None:
    """So that a sample shows which line of the file refuses."""
    data = """samples:
  - {request: "PUT HOST/key/x", expect: deny, reason: method_not_allowed}
  - {request: "PUT HOST/v1/x", expect: deny, reason: handle_wrong_host, handle: vendor, rule: bearer}
  - {request: "GET HOST/v3/x", expect: deny, reason: path_not_allowed, rule: keys}
"""
    failures = run_samples(PLACES, read_samples(data.replace("HOST", HOST).encode()))
    assert failures == [
        Failure("PUT https://api.vendor.example/key/x", "deny method_not_allowed", "deny path_not_allowed"),
        Failure(
            "GET https://api.vendor.example/v3/x",
            "deny path_not_allowed by keys",
            "deny path_not_allowed by bearer",
        ),
    ]


def test_a_rule_with_several_credentials_says_which_of_them_count() -> None:
    """Those that the session holds."""
    policy = load_policy("t", (Path(__file__).parents[1] / "file" / "working_told_apart.yaml").read_bytes())
    data = """samples:
  - {request: "GET API", expect: allow, credentials: [one, two]}
  - {request: "GET API", session: {credentials: [two]}, expect: allow, credentials: [two]}
  - {request: "POST METRICS", expect: allow, credentials: [metrics-write]}
  - {request: "POST METRICS", handle: none, expect: allow, credentials: [metrics-write]}
"""
    data = data.replace("API", "https://api.example.org/").replace("METRICS", "https://metrics.example.org/")
    assert run_samples(policy, read_samples(data.encode())) == []


def test_a_sample_can_say_that_somebody_is_asked() -> None:
    """The line that puts a person between the agent and the deed must not get lost."""
    rules = "rules: [{name: pay, hosts: [a.example], methods: [POST], ask: {}}]"
    asked = load_policy("a", f"version: 1\nowner: x\n{rules}\n".encode())
    unasked = load_policy("a", f"version: 1\nowner: x\n{rules.replace(', ask: {}', '')}\n".encode())
    sample = read_samples(b'samples: [{request: "POST https://a.example/", expect: allow, asks: true}]')
    assert run_samples(asked, sample) == []
    assert [str(failure) for failure in run_samples(unasked, sample)] == [
        "POST https://a.example/: expected allow after an approval, got allow without asking"
    ]


def test_samples_are_about_what_is_meant_to_stay() -> None:
    """While a policy observes, a daemon may let everything pass; its samples still show what is refused."""
    text = "version: 1\nowner: x\nobserve: {reason: learning, until: 2099-01-01}\n"
    sample = read_samples(
        b'samples: [{request: "GET https://a.example/", expect: deny, reason: host_not_allowed}]'
    )
    assert run_samples(load_policy("a", text.encode()), sample) == []
