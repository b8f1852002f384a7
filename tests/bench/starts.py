"""How much of the processor a start takes: `coatcheck --help`, and `coatcheck serve` until it is ready.

`python -m tests.bench.starts --rounds 10`. CPU time of whole processes, user and system, the best of all
rounds, which are interleaved. Each is compared with what cannot be saved: an empty Python, and mitmproxy's
own parts.
"""

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

COATCHECK: Final = Path(sys.executable).parent / "coatcheck"
MITMPROXY: Final = (
    "import mitmproxy.master, mitmproxy.options, mitmproxy.proxy.server, mitmproxy.addons.tlsconfig"
)
POLICY: Final = (
    "version: 1\nowner: bench\nrules:\n  - name: one\n    hosts: [api.example.com]\n    methods: [GET]\n"
)


def run(*command: str) -> float:
    """CPU seconds of a program that ends by itself."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def serve() -> float:
    """CPU seconds of `coatcheck serve` until it tells systemd that it is ready."""
    with tempfile.TemporaryDirectory(prefix="cc-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "policy.yaml").write_text(POLICY)
        (place / "policy.yaml").chmod(0o644)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(place / "notify"))
            manager.settimeout(60)
            environment = {
                "PATH": os.environ["PATH"],
                "NOTIFY_SOCKET": str(place / "notify"),
                "COATCHECK_STATE_DIR": str(place / "state"),
                "COATCHECK_POLICY": str(place / "policy.yaml"),
            }
            with (place / "log").open("wb") as log:
                daemon = subprocess.Popen([COATCHECK, "serve"], env=environment, stderr=log, stdout=log)
            try:
                manager.recv(4096)
                fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except TimeoutError:
                sys.stderr.write((place / "log").read_text())
                raise
            finally:
                daemon.send_signal(signal.SIGTERM)
                daemon.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.starts", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    empty, help_, alone, ready = (9.0,) * 4
    run(str(COATCHECK), "--help")  # bytecode is there from now on
    for _ in range(rounds):
        empty = min(empty, run(sys.executable, "-c", "pass"))
        help_ = min(help_, run(str(COATCHECK), "--help"))
        alone = min(alone, run(sys.executable, "-c", MITMPROXY))
        ready = min(ready, serve())
    print(
        f"starts help_ratio={help_ / empty:.1f} serve_ratio={ready / alone:.2f}"
        f" help_ms={help_ * 1000:.0f} empty_ms={empty * 1000:.0f}"
        f" serve_ms={ready * 1000:.0f} mitmproxy_ms={alone * 1000:.0f}"
    )


if __name__ == "__main__":
    main()
