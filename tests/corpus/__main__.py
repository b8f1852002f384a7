"""`python -m tests.corpus`: run the corpus, print what fails and the table of classes."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.corpus import core, namespace, runner
from tests.corpus.peers.run import PEERS
from tests.corpus.peers.run import run as run_peers
from tests.corpus.peers.table import table
from tests.corpus.proxies import Coatchecks
from tests.corpus.schema import Run, classes, runs
from tests.corpus.world import world


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.corpus", description=__doc__)
    parser.add_argument("--only", help="a class, a case or a check")
    parser.add_argument("--core", action="store_true", help="the pure core, with the same data")
    parser.add_argument(
        "--switch-off", action="store_true", help="each check switched off: its cases must fail"
    )
    parser.add_argument(
        "--proxy", choices=[*PEERS, "all"], help="by what leaves it and what comes back only: a table"
    )
    parser.add_argument("--json", type=Path, help="write every result there, and print nothing")
    parser.add_argument(
        "--state", type=Path, help="where daemons keep their state; default: removed afterwards"
    )
    asked = parser.parse_args()
    todo = list(runs(asked.only))
    if not asked.core:
        namespace.enter()
    started = time.monotonic()
    if asked.core:
        results = _core(todo)
    elif asked.proxy is not None:
        names = list(PEERS) if asked.proxy == "all" else [asked.proxy]
        print(table(asyncio.run(run_peers(todo, names))))
        return 0
    else:
        results = asyncio.run(_planes(todo, asked.state, off=asked.switch_off))
    if asked.json is not None:
        asked.json.write_text(json.dumps({each.run.id: each.wrong for each in results}))
        return 0
    _print(results, time.monotonic() - started)
    return int(any(each.wrong for each in results))


def _core(todo: list[Run]) -> list[runner.Result]:
    return [runner.Result(run, core.wrong(run)) for run in todo if core.has_part(run)]


async def _planes(todo: list[Run], state: Path | None, *, off: bool) -> list[runner.Result]:
    with tempfile.TemporaryDirectory(prefix="corpus-") as made:
        directory = state or Path(made)
        async with world(directory) as around:
            daemons = Coatchecks(directory, around)
            try:
                if off:
                    return await runner.switched_off(todo, daemons, around)
                return await runner.all_of(todo, daemons, around)
            finally:
                await daemons.close()


def _print(results: list[runner.Result], seconds: float) -> None:
    for each in results:
        for wrong in each.wrong:
            print(f"{each.run.id}: {wrong}")
    ran = Counter(each.run.class_ for each in results)
    bad = Counter(each.run.class_ for each in results if each.wrong)
    print(f"\n{'class':28} {'cases':>6} {'runs':>6} {'fail':>6}")
    for name, file in classes().items():
        print(f"{name:28} {len(file.cases):6} {ran[name]:6} {bad[name]:6}")
    cases = sum(len(file.cases) for file in classes().values())
    print(f"{'all':28} {cases:6} {len(results):6} {sum(bad.values()):6}   in {seconds:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
