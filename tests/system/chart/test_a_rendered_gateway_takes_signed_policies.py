"""The gateway as the chart renders it for signed policies: what somebody vouched for, and nothing else."""

import os
import time
from pathlib import Path

from coatcheck.policy.bundle.bundle import build, sign
from coatcheck.policy.bundle.signing_key import make_signing_key, read_signing_key
from tests.planes.platform import ISSUER
from tests.system.chart.helm import Helm
from tests.system.chart.test_a_rendered_gateway_serves_here import SECONDS, asked, serving
from tests.system.chart.values import Values
from tests.upstreams import UpstreamTls


def test_a_rendered_gateway_takes_what_was_signed_and_keeps_it(
    helm: Helm, upstream_tls: UpstreamTls, tmp_path: Path
) -> None:
    """A session on the bundle's policy is served. A later bundle by another key changes nothing, in words."""
    public, _ = make_signing_key(tmp_path / "ours.pem")
    make_signing_key(tmp_path / "theirs.pem")

    def bundle(policies: dict[str, str], version: int, key: str) -> bytes:
        files = {name.removesuffix(".yaml"): text.encode() for name, text in policies.items()}
        made = build(files, version=version, owner="tests", created="2026-11-22T00:00:00Z")
        return sign(made, read_signing_key(tmp_path / key))

    later: list[bytes] = []

    def signed(values: Values) -> Values:
        later.append(bundle(values["policies"], 13, "theirs.pem"))
        ours = bundle(values["policies"], 12, "ours.pem").decode()
        return values | {"policies": {}, "signedPolicies": {"bundle": ours, "trustRoot": public.read_text()}}

    with serving(helm, upstream_tls, change=signed) as gateway:
        opened = gateway.client.open_session(
            tenant="agents", subject="agent-0", policy="default", isolation="namespace",
            origin={"class": "token", "value": f"{ISSUER}|pod-a"},
        )  # fmt: skip
        handle, ca = opened["handles"]["openai"]["value"], opened["proxy"]["ca_bundle"]
        [file] = (gateway.log.parent / "etc/policies").iterdir()
        (tmp_path / "new").write_bytes(later[0])
        (tmp_path / "new").chmod(0o444)
        os.replace(tmp_path / "new", file)
        deadline = time.monotonic() + SECONDS
        while "refused, the old one stays" not in (said := gateway.log.read_text()):
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        assert "and trusted are" in said
        answer = asked(gateway, gateway.platform.token("pod-a"), handle, ca)
        assert answer.status_code == 200 and "gpt-" in answer.text
