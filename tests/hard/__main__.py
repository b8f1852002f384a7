"""`make hard`: the long searches, one after the other; each writes docs/hard/PART.md with date and commit.

A part is a module beside this one with `run(minutes: float) -> str`: Markdown without a title. It raises
`Failed` when something was found that must not be.
"""

import argparse
import datetime
import importlib
import os
import subprocess
import sys
from pathlib import Path

from tests.hard.failed import Failed

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "docs/hard"
PARTS = {
    "fuzz": "Fuzzing",
    "mutation": "Mutation testing of decision/",
    "kills": "`kill -9` under load",
    "soak": "Soak",
}
"""Module -> title; `make hard` runs those that are there, in this order."""


def present() -> list[str]:
    return [part for part in PARTS if (Path(__file__).parent / f"{part}.py").is_file()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make hard ARGS=…", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(present())} (default: all)")
    parser.add_argument("--minutes", type=float, default=30.0, help="for each part (default 30)")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(present()):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return chosen


def commit() -> str:
    """What was searched. `+` when the tree differed from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    dirty = git("status", "--porcelain", "--untracked-files=no", "--", "proxy", "tests")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")


def write(part: str, minutes: float, body: str) -> Path:
    now = datetime.datetime.now(datetime.UTC)
    head = (
        f"# {PARTS[part]}\n\n"
        f'`make hard ARGS="{part} --minutes {minutes:g}"`, {now:%Y-%m-%d %H:%M} UTC, commit {commit()}, '
        f"Python {sys.version.split()[0]}, {os.cpu_count()} cores.\n\n"
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{part}.md"
    path.write_text(head + body.strip() + "\n")
    return path


def main() -> int:
    chosen = arguments()
    failed = False
    for part in chosen.parts or present():
        print(f"{part}: {chosen.minutes:g} minutes", flush=True)
        try:
            body = importlib.import_module(f"tests.hard.{part}").run(chosen.minutes)
        except Failed as error:
            failed, body = True, str(error)
        print(f"{part}: written to {write(part, chosen.minutes, body).relative_to(ROOT)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
