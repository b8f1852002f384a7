"""In the supervisor: answers the daemon about a sandbox that can be saved, beside `launcher.api`."""

from collections.abc import Mapping

from aiohttp.web import Request

from coatcheck.durable.elastic import Initiator
from coatcheck.durable.supervisor import DurableSupervisor
from coatcheck.launcher.api import Ask
from coatcheck.sandbox.sandbox import SandboxState


def posts(supervisor: DurableSupervisor) -> Mapping[str, Ask]:
    """By path, for `launcher.api.serving`."""
    sandbox = supervisor.sandbox

    async def snapshot(request: Request) -> Mapping[str, object]:
        asked = await request.json()
        directory = await supervisor.snapshot(asked["name"], asked["replaces"], asked["limit"])
        return {"name": directory.name, "directory": str(directory)}

    async def fork_point(request: Request) -> Mapping[str, object]:
        return {"directory": str(await supervisor.fork_point())}

    async def sleep(request: Request) -> Mapping[str, object]:
        asked = await request.json()
        leaves = bool(asked.get("leaves"))
        if leaves and sandbox.state is SandboxState.PAUSED:  # only a guest that runs can be saved
            await sandbox.resume()
        held = await supervisor.sleep(leaves=leaves)
        return {"state": sandbox.state, "held": held}

    async def wake(request: Request) -> Mapping[str, object]:
        await supervisor.wake()
        return {"state": sandbox.state}

    async def scale(request: Request) -> Mapping[str, object]:
        asked = await request.json()
        size = await supervisor.elasticity.scale(asked["memory_mib"], asked["cpus"], Initiator.CALLER)
        return {"memory_mib": size.memory_mib, "cpus": size.cpus}

    return {
        "/snapshot": snapshot,
        "/fork-point": fork_point,
        "/sleep": sleep,
        "/wake": wake,
        "/scale": scale,
    }
