"""The least that the chart must be given, for each shape; tests add one thing each."""

from typing import Any

POLICY = """\
version: 1
owner: platform-security
credentials:
  openai:
    secret: vault:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
rules:
  - name: model calls
    hosts: [api.openai.com]
    methods: [GET, POST]
    paths: ["/v1/**"]
    credentials: [openai]
"""

type Values = dict[str, Any]

COMMON: Values = {
    "policies": {"default.yaml": POLICY},
    "vault": {"url": "https://vault.example:8200"},
    "platform": {"jwks": '{"keys": []}'},
}
GATEWAY: Values = {
    **COMMON,
    "gateway": {"control": {"secret": "control-tls", "grants": "# nobody\n"}},
}
SHARED: Values = {
    **COMMON,
    "gateway": {
        **GATEWAY["gateway"],
        "replicas": 2,
        "sharedState": {"url": "postgresql://coatcheck@db.example:5432/fleet", "secret": "fleet"},
    },
}
ROTATING: Values = {
    **SHARED,
    "gateway": {
        **SHARED["gateway"],
        "sharedState": {
            "url": "postgresql://db.example:5432/fleet",
            "secret": "fleet",
            "credentials": "database-credentials",
        },
    },
}
"""As the Vault Secrets Operator writes them from Vault's database engine."""
SIDECAR: Values = {**COMMON, "shape": "sidecar", "sidecar": {"namespaces": ["agents"]}}


def given(values: Values, **more: Any) -> Values:
    """`values` with more in it; mappings are joined, the rest is replaced."""
    made = dict(values)
    for name, value in more.items():
        known = made.get(name)
        made[name] = given(known, **value) if isinstance(value, dict) and isinstance(known, dict) else value
    return made


FLEET: Values = given(
    SIDECAR,
    sidecar={
        "sharedState": {
            "url": "postgresql://coatcheck@db.example:5432/fleet",
            "name": "agents",
            "secret": "fleet",
            "ca": "PEM",
        }
    },
)
