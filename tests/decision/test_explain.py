"""`policy explain` says which rule, which credential, and why not the others."""

from dataclasses import replace

from coatcheck.decision.denial import EXPLANATIONS, Reason
from coatcheck.decision.explain import explain, render
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Credential, HostPattern, PathPattern, Policy, Rule, SecretRef
from coatcheck.injectors.header import HeaderInjection

API = (HostPattern("api.example.org"),)


def credential(name: str, *hosts: str, optional: bool = False) -> Credential:
    return Credential(
        name,
        SecretRef("vault", "secret", name, "key"),
        tuple(map(HostPattern, hosts)),
        HeaderInjection("authorization"),
        handle_required=not optional,
    )


POLICY = Policy(
    "team",
    "security",
    "0" * 64,
    {
        "api": credential("api", "api.example.org"),
        "bare": credential("bare", "api.example.org", optional=True),
        "elsewhere": credential("elsewhere", "other.example.org"),
        "unlisted": credential("unlisted", "api.example.org"),
    },
    (
        Rule("other", (HostPattern("other.example.org"),), frozenset({"GET"}), ()),
        Rule("writes", API, frozenset({"POST"}), ()),
        Rule(
            "models", API, frozenset({"GET"}), (PathPattern(("v1", "models"), True),), ports=frozenset({8443})
        ),
        Rule(
            "reads",
            API,
            frozenset({"GET"}),
            (PathPattern(("v1",), True),),
            credentials=("api", "bare", "elsewhere"),
        ),
        Rule("later", API, frozenset({"GET"}), ()),
    ),
)
HERE = Destination("https", "api.example.org", 443)


def test_an_allowed_request_names_its_rule_and_its_credentials() -> None:
    """Every other rule and credential says why it is not the one."""
    found = explain(
        POLICY, {"api", "elsewhere", "unlisted"}, HERE, RequestHead("GET", "/v1/models?key=x", ())
    )
    assert found.denied is None
    assert [(view.name, view.chosen, view.reason) for view in found.rules] == [
        ("other", False, Reason.HOST_NOT_ALLOWED),
        ("writes", False, Reason.METHOD_NOT_ALLOWED),
        ("models", False, Reason.PORT_NOT_ALLOWED),
        ("reads", True, None),
        ("later", False, None),
    ]
    assert render(found) == (
        "GET https://api.example.org/v1/models: allowed by 'reads' of policy team\n"
        "rules, in the order in which they are tried:\n"
        "     other: it is for other.example.org\n"
        "     writes: it allows POST\n"
        "     models: it allows ports 8443\n"
        "  -> reads: it is the first that fits\n"
        "     later: it fits, but an earlier rule decides\n"
        "credentials:\n"
        "  -> api: injected in place of its handle\n"
        "     bare: the session was not granted it\n"
        "     elsewhere: it may not be sent here: host\n"
        "     unlisted: 'reads' does not list it\n"
    )


def test_a_refused_request_says_what_is_in_the_way() -> None:
    """The reason comes first, and no credential is usable."""
    found = explain(POLICY, {"api"}, HERE, RequestHead("GET", "/v1//models", ()))
    assert found.denied is not None and found.denied.reason is Reason.PATH_FORM_REFUSED
    assert not any(view.usable for view in found.credentials)
    text = render(found)
    assert text.startswith(
        "GET https://api.example.org/v1//models: refused by policy team: path_form_refused\n"
    )
    assert "later: it fits, but the request was refused first" in text


MANY = Policy(
    "many",
    "security",
    "0" * 64,
    {
        "plain": replace(credential("plain", "api.example.org"), plain_http=True),
        "tls": credential("tls", "api.example.org"),
        "posted": replace(credential("posted", "api.example.org"), methods=frozenset({"POST"})),
    },
    (
        Rule("elsewhere", (HostPattern("a.example.org"), HostPattern("b.org", True)), frozenset({"GET"}), ()),
        Rule("tls", API, frozenset({"GET"}), ()),
        Rule("ports", API, frozenset({"GET"}), (), ports=frozenset({8443, 8080}), plain_http=True),
        Rule("methods", API, frozenset({"POST", "DELETE"}), (), ports=frozenset({80}), plain_http=True),
        Rule(
            "paths",
            API,
            frozenset({"GET"}),
            (PathPattern(("v2",), True), PathPattern(("v3", "x"), False)),
            ports=frozenset({80}),
            plain_http=True,
        ),
        Rule("tunnel", API, frozenset(), (), ports=frozenset({80}), plain_http=True, tunnel=True),
        Rule(
            "fits",
            API,
            frozenset({"GET"}),
            (),
            credentials=("plain", "tls", "posted"),
            ports=frozenset({80}),
            plain_http=True,
        ),
    ),
)


def test_every_kind_of_misfit_is_told_with_what_would_fit() -> None:
    """Lists in full: anyone who writes the policy must see which word is missing."""
    plain = Destination("http", "api.example.org", 80)
    everything = {"plain", "tls", "posted"}
    assert render(explain(MANY, everything, plain, RequestHead("GET", "/v1", ()))) == (
        "GET http://api.example.org/v1: allowed by 'fits' of policy many\n"
        "rules, in the order in which they are tried:\n"
        "     elsewhere: it is for a.example.org, *.b.org\n"
        f"     tls: {EXPLANATIONS[Reason.PLAIN_HTTP_REFUSED].message}\n"
        "     ports: it allows ports 8080, 8443\n"
        "     methods: it allows DELETE, POST\n"
        f"     paths: it allows {PathPattern(('v2',), True)}, {PathPattern(('v3', 'x'), False)}\n"
        "     tunnel: it is a tunnel, in which no request is seen\n"
        "  -> fits: it is the first that fits\n"
        "credentials:\n"
        "  -> plain: injected in place of its handle\n"
        "     tls: it may not be sent here: plain HTTP\n"
        "     posted: it may not be sent here: plain HTTP\n"
    )
    upgrade = RequestHead("GET", "/v1", (("upgrade", "websocket"),))
    assert render(explain(MANY, everything, plain, upgrade)) == (
        "GET http://api.example.org/v1: refused by policy many: protocol_refused\n"
        f"  {EXPLANATIONS[Reason.PROTOCOL_REFUSED].message}\n"
        "rules, in the order in which they are tried:\n"
        "     elsewhere: it is for a.example.org, *.b.org\n"
        f"     tls: {EXPLANATIONS[Reason.PLAIN_HTTP_REFUSED].message}\n"
        "     ports: it allows ports 8080, 8443\n"
        "     methods: it allows DELETE, POST\n"
        f"     paths: it allows {PathPattern(('v2',), True)}, {PathPattern(('v3', 'x'), False)}\n"
        "     tunnel: it is a tunnel, in which no request is seen\n"
        f"     fits: {EXPLANATIONS[Reason.PROTOCOL_REFUSED].message}\n"
        "credentials:\n"
        "     plain: no rule allows the request\n"
        "     tls: no rule allows the request\n"
        "     posted: no rule allows the request\n"
    )


def test_a_path_that_a_rule_looks_at_and_nobody_can_read_alike_is_told() -> None:
    """The rule that looks at paths is not passed over; one that does not look at them would fit."""
    found = explain(POLICY, (), HERE, RequestHead("GET", "/v1//x", ()))
    assert [view.reason for view in found.rules[3:]] == [Reason.PATH_FORM_REFUSED, None]
    assert f"  {found.denied.detail if found.denied else ''}\n" in render(found)
    steered = explain(POLICY, (), HERE, RequestHead("GET", "/v1", (("x-http-method", "PUT"),)))
    assert [view.reason for view in steered.rules[3:]] == [Reason.METHOD_NOT_ALLOWED] * 2


def test_a_credential_says_what_of_the_request_is_in_the_way() -> None:
    """Host, method or path."""
    narrow = replace(credential("api", "api.example.org"), methods=frozenset({"POST"}))
    policy = Policy(
        "p", "o", "0" * 64, {"api": narrow}, (Rule("all", API, frozenset({"GET"}), (), credentials=("api",)),)
    )
    (view,) = explain(policy, {"api"}, HERE, RequestHead("GET", "/", ())).credentials
    assert (view.name, view.usable, view.why) == ("api", False, "it may not be sent here: method")


def test_an_optional_handle_is_told() -> None:
    """The session's own requests get it without showing anything."""
    found = explain(POLICY, {"bare"}, HERE, RequestHead("GET", "/v1/x", ()))
    assert [view.why for view in found.credentials if view.usable] == ["injected without a handle"]


def test_an_empty_policy_explains_itself() -> None:
    """No rules, so nothing is allowed."""
    empty = Policy("empty", "security", "0" * 64)
    assert render(explain(empty, (), HERE, RequestHead("GET", "/", ()))) == (
        "GET https://api.example.org/: refused by policy empty: host_not_allowed\n"
        f"  {EXPLANATIONS[Reason.HOST_NOT_ALLOWED].message}\n"
        "rules, in the order in which they are tried:\n"
    )
