"""Coatcheck as shipped, for the benchmark: the real daemon with secrets from a real OpenBao.

`python -m tests.bench.coatcheck_daemon DIRECTORY UPSTREAM_CA ORIGIN_PORT CORE`. Opens world.SESSIONS
sessions, writes DIRECTORY/routes.json when it is ready, and serves until SIGTERM. At SIGUSR2 it writes to
DIRECTORY/blocks how many blocks of memory its live objects have: resident memory that grows without them is
the allocator's. With BENCH_PROFILE it writes cProfile's figures of its main thread there.
"""

import asyncio
import cProfile
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from coatcheck.daemon import Daemon, protect_process
from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.secrets.vault import VaultConfig, VaultStore
from coatcheck.settings.daemon import Settings
from coatcheck.state.sessions import NewSession
from tests.bench import world

LEASE_SECONDS = 86_400.0
"""Nobody renews here."""


def settings(directory: Path, upstream_ca: Path, port: int) -> Settings:
    """Defaults, but for where things are."""
    policies = directory / "policies"
    policies.mkdir(mode=0o755)
    (policies / "default.yaml").write_text(world.policy(more()))
    (policies / "default.yaml").chmod(0o644)
    return Settings(
        state_dir=directory / "state",
        runtime_dir=directory / "run",
        policy=policies,
        upstream_ca_file=upstream_ca,
        allowed_networks=("127.0.0.0/8",),
        connect_to={f"{host}:443": f"127.0.0.1:{port}" for host in world.HOSTS},
        session_lease=LEASE_SECONDS,
        session_max_age=LEASE_SECONDS,
        drain_seconds=2.0,
    )


def more() -> dict[str, Any]:
    """Credentials and rules that one benchmark needs beside the ordinary ones; the last session has them."""
    found: dict[str, Any] = json.loads(os.environ.get("BENCH_POLICY", "{}"))
    return found


async def open_sessions(daemon: Daemon) -> list[world.Route]:
    """All sessions; the first world.CONNECTIONS get a port of their own and carry the load."""
    assert daemon.listeners is not None
    routes = []
    extra = more().get("credentials", {})
    for number in range(world.SESSIONS):
        host = world.host_of(number)
        held = (*world.credentials_of(host), *(extra if number == world.SESSIONS - 1 else ()))
        wanted = NewSession(
            tenant=f"tenant-{number % 20}",
            subject=f"agent-{number}",
            policy="default",
            credentials=frozenset(held),
        )
        session, minted = daemon.state.open_session(wanted, "bench")
        if number < world.CONNECTIONS:
            proxy = await daemon.listeners.open_tcp(session.id)
            handles = tuple(handle.value for handle in minted)
            routes.append(world.Route(proxy, f"{host}:443", host, handles))
    return routes


def count_blocks(path: Path) -> None:
    gc.collect()
    unfinished = path.with_suffix(".new")
    unfinished.write_text(str(sys.getallocatedblocks()))
    unfinished.rename(path)


async def serve(directory: Path, upstream_ca: Path, port: int, core: int) -> None:
    protect_process()
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, count_blocks, directory / "blocks")
    async with EmbeddedVault.start(log=directory / "openbao.log") as vault:
        for host in world.HOSTS:
            for name in world.credentials_of(host):
                await vault.put(name, {"api_key": world.secret_of(name)})
        login = await vault.daemon_login(directory)
        os.sched_setaffinity(0, {core})  # only now: OpenBao keeps the other core
        store = VaultStore(VaultConfig(url=vault.url, login=login))
        daemon = Daemon(settings(directory, upstream_ca, port), {"vault": store})
        await daemon.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, daemon.hang_up)
        try:
            routes = await open_sessions(daemon)
            unfinished = directory / "routes.json.new"
            world.write_routes(unfinished, routes)
            unfinished.rename(directory / "routes.json")
            await ending.wait()
        finally:
            await daemon.stop()


def main() -> None:
    directory, upstream_ca, port, core = sys.argv[1:]
    serving = serve(Path(directory), Path(upstream_ca), int(port), int(core))
    profile_to = os.environ.get("BENCH_PROFILE")
    if profile_to is None:
        asyncio.run(serving)
        return
    profile = cProfile.Profile()
    try:
        profile.runcall(asyncio.run, serving)
    finally:
        profile.dump_stats(profile_to)


if __name__ == "__main__":
    main()
