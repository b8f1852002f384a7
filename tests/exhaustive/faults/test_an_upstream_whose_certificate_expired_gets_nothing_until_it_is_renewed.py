"""An upstream lets its certificate run out, and renews it: no secret in between, and no restart of ours."""

import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.daemon import running_daemon
from tests.planes.attack import nothing_is_left, request
from tests.planes.raw_origin import RawOrigin
from tests.planes.wire import tunnel
from tests.system.e2e.story import policy

HOST = "api.openai.com"


def certify(context: ssl.SSLContext, authority: trustme.CA, until: timedelta, directory: Path) -> None:
    leaf = authority.issue_cert(HOST, not_after=datetime.now(UTC) + until)
    leaf.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    leaf.private_key_pem.write_to_path(directory / "key.pem")
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")


async def test_expired_and_renewed(
    place: Path, tmp_path: Path, real_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """502 `upstream_tls` while it lasts, and not a byte of a request: a TLS session of better days, which
    verifies nothing when it is resumed, ends with the certificate that it was begun with."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    origin = RawOrigin(context)
    certify(context, authority, timedelta(days=1), tmp_path)
    await origin.start()
    try:
        async with running_daemon(
            place,
            policy(),
            {"memory:secret/openai#api_key": real_keys["openai"]},
            upstream_ca=tmp_path / "ca.pem",
            connect_to={f"{HOST}:443": origin.port},
        ) as daemon:
            sandbox = await daemon.sandbox()
            assert daemon.plane is not None
            now = [0.0]
            monkeypatch.setattr(
                daemon.plane.shared.upstream_tls, "_clock", lambda: time.time() + now[0] * 86_400
            )
            for now[0], until, why in ((0, 1, ""), (0.9, -1, ""), (1.1, -1, "upstream_tls"), (1.1, 2, "")):
                certify(context, authority, timedelta(days=until), tmp_path)
                before = len([head for head in origin.heads if head])
                async with tunnel(daemon, sandbox) as raw:
                    await raw.send(request(sandbox))
                    assert await raw.refused_because() == why
                assert len([head for head in origin.heads if head]) - before == (0 if why else 1)
            await nothing_is_left(daemon)
            reasons = [decision["reason"] for decision in daemon.decisions()]
            assert reasons == [None, None, None, "upstream_tls", None]
    finally:
        await origin.stop()
