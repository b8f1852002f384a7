"""Mutation testing of decision/: what no unit test of it would notice, if somebody changed it.

mutmut lives in an environment of its own below var/hard, which sees the project's packages. It writes the
mutants and learns which test runs what; `forked` runs them. They keep their results, so that a run which was
too short goes on where it ended.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from tests.hard import equivalent, mutation_report, survivors
from tests.hard.failed import Failed

ROOT = Path(__file__).parent.parent.parent
WORK = ROOT / "var/hard/mutation"
FORKED = Path(__file__).parent / "forked.py"
STAGE, MUTANTS = WORK / "stage", WORK / "stage/mutants"
MUTMUT = "mutmut==3.8.1"
DECISION = "from coatcheck.decision."
ONE_EACH = "coatcheck.decision.session.*__mutmut_1"
"""Mutants of which mutmut makes sure that it works; that is when it writes all of them."""

BOMB = "tests/decision/test_content_coding.py::test_bombs_are_refused_in_bounded_memory[collapsing]"
PYPROJECT = """
[tool.pytest.ini_options]
pythonpath = ["."]
addopts = ["--import-mode=importlib", "-p", "no:langsmith_plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"

[tool.mutmut]
source_paths = ["coatcheck"]
only_mutate = ["coatcheck/decision/*"]
# One test of a bomb takes minutes among mutants; others of the same decoder take seconds.
pytest_add_cli_args_test_selection = ["tests/decision", "--deselect", "BOMB"]
track_dependencies = false
use_git_change_detection = false
"""


def run(minutes: float) -> str:
    """Tests as many mutants as the time allows. Raises Failed when one that matters is alive."""
    deadline = time.monotonic() + minutes * 60
    stage()
    mutmut(ONE_EACH)
    harmless = survivors.not_worth_running(MUTANTS)
    for module in order(STAGE / "coatcheck"):
        done = harmless.keys() | explained(module)
        waiting = [name for name in survivors.unjudged(MUTANTS, module) if name not in done]
        seconds = deadline - time.monotonic()
        if waiting and seconds > 0:
            polite([environment() / "bin/python", FORKED, f"{seconds:.0f}", *waiting], MUTANTS)
    body, failed = mutation_report.report(MUTANTS, harmless)
    if failed:
        raise Failed(body)
    return body


def order(package: Path) -> list[str]:
    """The modules of decision/: first what the request path imports of it, and what that imports in turn;
    then all others."""
    found = list(
        dict.fromkeys(name for path in sorted((package / "request").glob("*.py")) for name in imported(path))
    )
    for name in found:  # which grows
        found += [each for each in imported(package / f"decision/{name}.py") if each not in found]
    modules = {path.stem for path in (package / "decision").glob("*.py")}
    return [*found, *sorted(modules - {*found})]


def imported(path: Path) -> list[str]:
    """Modules of decision/ that a file imports, in its order."""
    lines = path.read_text().splitlines()
    return [line.removeprefix(DECISION).split()[0] for line in lines if line.startswith(DECISION)]


def explained(module: str) -> set[str]:
    """`module.mutant` of those that lived before, as somebody has said they may."""
    alive = survivors.survivors(MUTANTS, module)
    return {f"{module}.{one.name}" for one in alive if equivalent.reason(module, one.diff)}


def stage() -> None:
    """What is committed of the package and its tests of decision/, side by side as mutmut wants it."""
    for tree in (STAGE / "coatcheck", STAGE / "tests", MUTANTS / "tests"):
        shutil.rmtree(tree, ignore_errors=True)
    STAGE.mkdir(parents=True, exist_ok=True)
    wanted = [
        *("proxy/coatcheck", "tests/decision"),
        *("tests/__init__.py", "tests/known_secrets.py", "tests/request/test_exchange.py"),
    ]
    with subprocess.Popen(["git", "archive", "HEAD", *wanted], cwd=ROOT, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x"], cwd=STAGE, stdin=archive.stdout, check=True)
    (STAGE / "proxy/coatcheck").rename(STAGE / "coatcheck")
    for path in (STAGE / "coatcheck/decision").glob("*.py"):
        # mutmut leaves decorated functions alone, and a cache would answer for the mutant what it knows
        path.write_text(re.sub(r"(?m)^@lru_cache\(.*\)\n", "", path.read_text()))
    (STAGE / "pyproject.toml").write_text(PYPROJECT.replace("BOMB", BOMB))


def mutmut(names: str) -> None:
    """Writes all mutants, learns which test runs what, and runs those of these names."""
    polite([environment() / "bin/mutmut", "run", names, "--max-children", "1"], STAGE)


def polite(command: Sequence[str | Path], place: Path) -> None:
    """Runs it as nobody's neighbour would mind. Raises Failed when it fails."""
    nice = ["nice", "-n", "10", *map(str, command)]
    done = subprocess.run(
        nice,
        cwd=place,
        env=os.environ | {"PYTHONPATH": ".", "CI": "true"},  # hypothesis: no deadlines on a busy machine
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        raise Failed(f"{Path(command[0]).name} itself failed:\n\n```\n{said}\n```")


def environment() -> Path:
    """mutmut with the project's own packages, made when it is not there."""
    place = WORK / "venv"
    if not (place / "bin/mutmut").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([place / "bin/python", "-m", "pip", "install", "-q", MUTMUT], check=True)
        (own,) = place.glob("lib/python*/site-packages")
        (own / "project.pth").write_text(sysconfig.get_path("purelib") + os.linesep)
    return place
