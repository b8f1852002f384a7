"""An OCI runtime as our child: runc, or gVisor's runsc. It makes a container, waits for it and removes it."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coatcheck.containers.cgroup import Cgroup
from coatcheck.containers.child import Child, found
from coatcheck.sandbox.machine import MachineError

SETUP_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
"""Until the kernel has taken back the memory of everything that was killed."""
_POLL_SECONDS: Final = 0.005
_GO: Final = 9
_HELD: Final = ("/bin/sh", "-c", f'umask 022; read -r _ <&{_GO} || exit; exec {_GO}<&-; exec "$@"', "sh")
"""Waits until it is in its group. Directories that the runtime makes in there are for all users of the
sandbox, whatever our umask is."""
_MESSAGE: Final = re.compile(r'msg="((?:[^"\\]|\\.)*)"')


class Runtime:
    """One container. All methods belong to one event loop."""

    def __init__(self, program: str, name: str, directory: Path, options: Sequence[str] = ()) -> None:
        """`directory`: of the sandbox, 0700; what the runtime remembers of the container is in it."""
        self._program = program
        self._options = options
        self._name = name
        self._place = directory / "container"
        self._child = Child()
        self._pidfd = -1
        self._following: asyncio.Task[None] | None = None
        self.first = 0
        """Its process 1, as the host numbers it; 0 before `start`."""

    async def start(
        self,
        config: Mapping[str, Any],
        descriptors: Mapping[int, int],
        run: Sequence[str] = (),
        group: Cgroup | None = None,
    ) -> None:
        """Run what `config` says, with `descriptors` (number there -> ours). `run`: options. `group`: of the
        runtime, too. MachineError when the runtime ends before."""
        self._place.mkdir(mode=0o700, parents=True)
        (self._place / "config.json").write_text(json.dumps(config))
        pid_file = self._place / "pid"
        words = [*self._words(), "run", "--bundle", str(self._place), "--pid-file", str(pid_file), *run]
        held, go = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._child.spawn([*_HELD, *words, self._name], {**descriptors, _GO: held})
            finally:
                os.close(held)
            if group is not None:
                await asyncio.to_thread(group.add, self._child.pid)
            os.write(go, b"\n")
        finally:
            os.close(go)
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                while (first := written_number(pid_file)) is None:
                    if self._child.ended():
                        raise MachineError(
                            f"{self._program} made no sandbox: {self.said()}",
                            "as root it must be free to write to /sys/fs/cgroup and to make user namespaces;"
                            " else run the daemon as an ordinary user, for whom bubblewrap makes them",
                        )
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise MachineError(f"{self._program} made no sandbox within {SETUP_SECONDS:g} s") from None
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._pidfd = os.pidfd_open(first)
            self.first = first
            self._following = asyncio.create_task(self._follow())

    async def wait(self) -> int:
        """Until it ended: its exit code, 128+n when process 1 ended by signal n."""
        return await self._child.wait()

    def ended(self) -> bool:
        return self._child.ended()

    def said(self) -> str:
        """The last line that the runtime, or process 1, wrote to standard error."""
        line = self._child.said()
        found = _MESSAGE.search(line)
        return found[1].replace('\\"', '"') if found else line

    async def pause(self) -> None:
        """MachineError when the runtime cannot."""
        await self._do("pause")

    async def resume(self) -> None:
        await self._do("resume")

    async def stop(self) -> None:
        """End everything in it, and wait until it is gone. Idempotent."""
        if self._pidfd >= 0:
            self._kill()
        else:
            self._child.kill()
        if not await self._child.close(STOP_SECONDS):
            self._child.kill()
            await self._child.close(STOP_SECONDS)
        if self._following is not None:
            await self._following
            os.close(self._pidfd)
            self._pidfd, self._following = -1, None
        self.first = 0
        if self._place.exists():
            with contextlib.suppress(MachineError):  # it has removed itself, mostly
                await self._do("delete", "--force")

    async def _follow(self) -> None:
        """A runtime that was killed takes its container along: nothing runs that nobody watches."""
        await self._child.wait()
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            # Process 1 takes its whole namespace along, and the runtime, which waits for it.
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _words(self) -> list[str]:
        return [found(self._program), "--root", str(self._place / "state"), *self._options]

    async def _do(self, command: str, *options: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(*self._words(), command, *options, self._name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, said = await process.communicate()
        if process.returncode:
            raise MachineError(f"{self._program} {command}: {said.decode(errors='replace').strip()[-300:]}")


def written_number(path: Path) -> int | None:
    """What a runtime wrote there, or None while it has not: runsc makes the file first, and writes then."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    return int(text) if text else None
