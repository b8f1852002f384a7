"""What telemetry over OTLP costs: two daemons in one run, one of them with a collector.

`python -m tests.bench.otel --rounds 5 --seconds 3`. Interleaved, on one core; load, origin and collector have
another. CPU counts more than the rate does: what else the machine runs disturbs it less.
"""

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.bench import report
from tests.bench.__main__ import cores, start_coatcheck
from tests.bench.measuring import Bench, median_ratio
from tests.bench.origin import running_origin
from tests.bench.proxies import running, wait_for_file

WITHOUT, WITH = "without", "with a collector"


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    taken = 0

    def do_POST(self) -> None:
        type(self).taken += len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def collect(said: Path) -> None:
    """Take everything, for ever; `said` gets the port."""
    server = HTTPServer(("127.0.0.1", 0), Collector)
    unfinished = said.with_suffix(".new")
    unfinished.write_text(str(server.server_address[1]))
    unfinished.rename(said)
    server.serve_forever()


def compare(directory: Path, rounds: int, seconds: float) -> None:
    proxy_core, load_core = cores()
    os.sched_setaffinity(0, {load_core})
    with ExitStack() as stack:
        said, log = directory / "port", directory / "collector.log"
        command = [sys.executable, "-m", "tests.bench.otel", "--collect", str(said)]
        wait_for_file(said, stack.enter_context(running(command, log, load_core, {})), log)
        origin = stack.enter_context(running_origin(directory / "origin"))
        targets = []
        endpoint = {"otel_endpoint": f"http://127.0.0.1:{said.read_text()}"}
        for name, settings in ((WITHOUT, None), (WITH, endpoint)):
            own = directory / name.replace(" ", "-")
            own.mkdir(mode=0o755)
            targets.append(start_coatcheck(stack, own, origin, proxy_core, name=name, settings=settings))
        bench = Bench(origin, targets, seconds)
        bench.run(rounds, report.say)
        plain, telling = bench.figures[WITHOUT], bench.figures[WITH]
        for name in (WITHOUT, WITH):
            figures = bench.figures[name]
            print(
                f"{name}: {statistics.median(figures.kept_rate):.0f} requests/s,"
                f" {statistics.median(figures.kept_cpu) * 1000:.2f} CPU s per 1,000,"
                f" p99 {statistics.median(figures.kept_p99) * 1000:.1f} ms"
            )
        print(
            f"otel rate_ratio={median_ratio(telling.kept_rate, plain.kept_rate):.2f}"
            f" cpu_ratio={median_ratio(telling.kept_cpu, plain.kept_cpu):.2f}"
            f" p50_ratio={median_ratio(telling.kept_p50, plain.kept_p50):.2f}"
            f" p99_ratio={median_ratio(telling.kept_p99, plain.kept_p99):.2f}"
            f" newconn_cpu_ratio={median_ratio(telling.fresh_cpu, plain.fresh_cpu):.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.otel", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.collect is not None:
        collect(chosen.collect)
    with tempfile.TemporaryDirectory(prefix="coatcheck-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        compare(directory, chosen.rounds, chosen.seconds)


if __name__ == "__main__":
    main()
