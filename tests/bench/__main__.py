"""`make bench`: Coatcheck side by side with a stock mitmdump and a bare embedded Master, in one run.

The proxies share one core and are measured in turn, so that what else the machine does hits all three;
the load and the origin have another core. Every answer is looked at, and Coatcheck's audit records are
counted against the requests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from coatcheck.certificates.trust import CA_FILE
from tests.bench import report, revocation, world
from tests.bench.measuring import Bench, Target
from tests.bench.origin import Origin, running_origin
from tests.bench.proxies import BenchError, Proxy, running, wait_for_file, wait_for_port
from tests.ports import free_port


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default 5)")
    parser.add_argument(
        "--requests", type=int, default=50_000, help="of the memory measurement (default 50,000)"
    )
    parser.add_argument("--long", action="store_true", help="1,000,000 requests in the memory measurement")
    parser.add_argument(
        "--profile", action="store_true", help="run Coatcheck alone under cProfile and print where time goes"
    )
    parser.add_argument("--fresh", action="store_true", help="with --profile: new connections, not kept ones")
    return parser.parse_args()


def cores() -> tuple[int, int]:
    """One for the proxies, one for load and origin; the same one where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def start_stock(stack: ExitStack, directory: Path, origin: Origin, core: int, handles: Path) -> Target:
    """mitmdump as it ships: all its addons, its RSA CA, streaming on."""
    port, log = free_port(), directory / "stock.log"
    command = [
        str(Path(sys.executable).parent / "mitmdump"), "-q",
        "-s", str(Path(__file__).parent / "stock_swap.py"),
        "--listen-host", "127.0.0.1", "-p", str(port),
        "--set", f"confdir={directory / 'stock'}",
        "--set", f"ssl_verify_upstream_trusted_ca={origin.ca}",
        "--set", "stream_large_bodies=1",
    ]  # fmt: skip
    process = stack.enter_context(running(command, log, core, {"BENCH_HANDLES": str(handles)}))
    wait_for_port(("127.0.0.1", port), process, log)
    ca = directory / "stock" / "mitmproxy-ca-cert.pem"
    wait_for_file(ca, process, log)  # it listens first
    return Target(
        Proxy("stock mitmdump", process.pid), world.stock_routes(("127.0.0.1", port), origin.address), ca
    )


def start_bare(stack: ExitStack, directory: Path, origin: Origin, core: int, handles: Path) -> Target:
    """An embedded Master with four addons and our kind of CA."""
    from coatcheck.certificates.authority import Authority

    authority = Authority.create(directory / "bare-ca", "bench")
    confdir = directory / "bare"
    confdir.mkdir(mode=0o700)
    key = (directory / "bare-ca" / "ca-key.pem").read_bytes()
    (confdir / "mitmproxy-ca.pem").write_bytes(key + authority.pem)
    (confdir / "ca.pem").write_bytes(authority.pem)
    port, log = free_port(), directory / "bare.log"
    command = [sys.executable, "-m", "tests.bench.bare_master", str(port), str(confdir), str(origin.ca)]
    process = stack.enter_context(running(command, log, core, {"BENCH_HANDLES": str(handles)}))
    wait_for_port(("127.0.0.1", port), process, log)
    return Target(
        Proxy("bare Master", process.pid),
        world.stock_routes(("127.0.0.1", port), origin.address),
        confdir / "ca.pem",
    )


def start_coatcheck(
    stack: ExitStack,
    directory: Path,
    origin: Origin,
    core: int,
    profile: Path | None = None,
    name: str = "Coatcheck",
    settings: Mapping[str, str] | None = None,
) -> Target:
    """The daemon as shipped, but for `settings`."""
    own = directory / "coatcheck"
    own.mkdir(mode=0o700)
    log = directory / "coatcheck.log"
    command = [
        sys.executable, "-m", "tests.bench.coatcheck_daemon",
        str(own), str(origin.ca), str(origin.address[1]), str(core),
    ]  # fmt: skip
    environment = {f"COATCHECK_{setting.upper()}": value for setting, value in (settings or {}).items()}
    environment |= {"BENCH_PROFILE": str(profile)} if profile else {}
    process = stack.enter_context(running(command, log, None, environment))
    wait_for_file(own / "routes.json", process, log)
    return Target(
        Proxy(name, process.pid), world.read_routes(own / "routes.json"), own / "run/trust" / CA_FILE
    )


def measure_verdict(directory: Path, core: int) -> dict[str, float]:
    own = directory / "verdict"
    own.mkdir(mode=0o700)
    command = ["taskset", "-c", str(core), sys.executable, "-m", "tests.bench.verdict", str(own)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise BenchError("the verdict alone could not be measured; see above")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def profile(directory: Path, chosen: argparse.Namespace) -> None:
    proxy_core, load_core = cores()
    os.sched_setaffinity(0, {load_core})
    stats = directory / "coatcheck.prof"
    with ExitStack() as stack:
        origin = stack.enter_context(running_origin(directory / "origin"))
        target = start_coatcheck(stack, directory, origin, proxy_core, stats)
        bench = Bench(origin, [target], chosen.seconds)
        sample = bench.fresh(target) if chosen.fresh else bench.kept(target)
        print(f"{sample.rate:.0f} requests/s under the profiler")
    report.print_profile(stats, len(sample.latencies))


def compare(directory: Path, chosen: argparse.Namespace) -> None:
    proxy_core, load_core = cores()
    os.sched_setaffinity(0, {load_core})
    handles = directory / "handles.json"
    handles.write_text(json.dumps(world.stock_handles()))
    with ExitStack() as stack:
        report.say("starting nginx, mitmdump, the bare Master, OpenBao and Coatcheck with 1,000 sessions")
        origin = stack.enter_context(running_origin(directory / "origin"))
        targets = [
            start_stock(stack, directory, origin, proxy_core, handles),
            start_bare(stack, directory, origin, proxy_core, handles),
            start_coatcheck(stack, directory, origin, proxy_core),
        ]
        bench = Bench(origin, targets, chosen.seconds)
        bench.run(chosen.rounds, report.say)
        report.say("memory over requests")
        bench.grow(targets[-1], 1_000_000 if chosen.long else chosen.requests, report.say)
    audited = bench.count_audit(directory / "coatcheck/state/audit")
    report.say("the verdict by itself")
    verdict = measure_verdict(directory, proxy_core)
    report.say("revocations under load")
    took = revocation.measure(core=proxy_core)
    print("", revocation.table(took), revocation.line(took), sep="\n")
    report.print_results(bench, verdict, audited)


def main() -> int:
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="coatcheck-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        try:
            (profile if chosen.profile else compare)(directory, chosen)
        except BenchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
