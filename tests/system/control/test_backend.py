"""What the control API makes of a daemon."""

import asyncio

from coatcheck.control.backend import Backend
from tests.system.control.conftest import Control


async def test_a_broken_audit_log_is_missing(control: Control) -> None:
    """Every request is refused then, so another replica should have them."""
    backend = Backend(control.daemon, lambda: None)
    assert backend.missing() == ()
    control.daemon.audit.close()
    assert backend.missing() == ("audit log",)


async def test_what_is_refused_at_a_reload_is_named(control: Control) -> None:
    """Grants and policies apart: each keeps what it had."""
    backend = Backend(control.daemon, lambda: "bad grants")
    assert await backend.reload() == {"grants": "bad grants"}
    (control.daemon.settings.policy / "default.yaml").write_text("version: 1\n")
    refused = await backend.reload()
    assert set(refused) == {"grants", "policy"}
    assert "owner" in refused["policy"]


async def test_a_listener_ends_with_its_session(control: Control) -> None:
    """Taking the session takes the way in."""
    backend = Backend(control.daemon, lambda: None)
    session = await control.session(listen="tcp")
    assert (backend.endpoint(session) or "").startswith("http://127.0.0.1:")
    await asyncio.to_thread(control.owner.end, session)
    for _ in range(100):
        if backend.endpoint(session) is None:
            break
        await asyncio.sleep(0.02)
    assert backend.endpoint(session) is None
