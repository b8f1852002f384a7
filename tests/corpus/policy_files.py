"""What happens to policy files while sandboxes run: `policy: {…}` changes one, which is then read.

  write: text          the whole file; append: text; swap: [this, for that]
  remove: true         the file is gone
  as: NAME.yaml        another file than that of the session's policy
  mode: 438  link: true (to a file elsewhere)  reload: false
A good rule for evil.example, in a file that must be refused, shows whether it was.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.corpus.driver import STEPS, Driver
from tests.corpus.proxies import Coatcheck


async def _policy(driver: Driver, asked: Mapping[str, Any], _: Mapping[str, Any]) -> None:
    assert isinstance(driver.proxy, Coatcheck)
    proxy = driver.proxy
    if not any(name == "policies" for name, _ in driver.undo):

        async def restore() -> None:
            await _as_they_were(proxy)

        driver.undo.append(("policies", restore))
    session = proxy.daemon.state.sessions.by_id[driver.inside.session]
    path = proxy.policies / asked.get("as", f"{session.policy}.yaml")
    if asked.get("remove"):
        path.unlink()
    else:
        _write(path, asked, driver)
    if asked.get("reload", True):
        await proxy.daemon.reload()


def _write(path: Path, asked: Mapping[str, Any], driver: Driver) -> None:
    data = path.read_bytes() if path.exists() else b""
    if "write" in asked:
        data = driver.expand(asked["write"])
    if "swap" in asked:
        old, new = (driver.expand(each) for each in asked["swap"])
        assert old in data, old
        data = data.replace(old, new)
    data += driver.expand(asked.get("append", ""))
    made = path.with_name(".made")  # whole at once: half a file is a case of its own
    if asked.get("link"):
        elsewhere = path.parent.with_name("elsewhere.yaml")
        elsewhere.write_bytes(data)
        elsewhere.chmod(0o644)
        made.symlink_to(elsewhere)
    else:
        made.write_bytes(data)
        made.chmod(int(asked.get("mode", 0o644)))
    os.replace(made, path)


async def _as_they_were(proxy: Coatcheck) -> None:
    for path in proxy.policies.iterdir():
        path.unlink()
    for name, data in proxy.as_written.items():
        (proxy.policies / name).write_bytes(data)
        (proxy.policies / name).chmod(0o644)
    assert await proxy.daemon.reload(), proxy.daemon.policies.last_refused


STEPS["policy"] = _policy
