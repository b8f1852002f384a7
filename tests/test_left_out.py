"""The image leaves out what is never imported, and nothing else."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
IMAGE: Final = ROOT / "deploy/image"

LATER: Final = {
    "click": "help",
    "colorama": "Windows",
    "jmespath": "botocore, when it pages",
    "markdown-it-py": "help",
    "mdurl": "help",
    "mitmproxy-macos": "macOS",
    "mitmproxy-windows": "Windows",
    "pydivert": "Windows",
    "pygments": "help",
    "rich": "help",
    "tzdata": "Windows",
}
"""Not imported with our modules: on other systems, or when something is done."""

PROGRAM: Final = """
import importlib, importlib.abc, importlib.metadata, json, pkgutil, sys, warnings

warnings.simplefilter("ignore")
left_out = set(json.loads(sys.argv[1]))
places = importlib.metadata.packages_distributions()


def norm(name):
    return name.replace("_", "-").replace(".", "-").lower()


class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if left_out & {norm(each) for each in places.get(name.partition(".")[0], ())}:
            raise ModuleNotFoundError(f"{name} is left out of the image", name=name)


sys.meta_path.insert(0, Absent())
import coatcheck

for found in pkgutil.walk_packages(coatcheck.__path__, "coatcheck."):
    if not found.name.endswith("__main__") and "frameworks" not in found.name and ".guest" not in found.name:
        importlib.import_module(found.name)
tops = {name.partition(".")[0] for name in sys.modules}
print(json.dumps(sorted({norm(each) for top in tops for each in places.get(top, ())})))
"""


def locked() -> set[str]:
    return set(
        re.findall(r"^([a-z0-9][a-z0-9._-]*)==", (IMAGE / "requirements.lock").read_text(), re.MULTILINE)
    )


def test_the_image_has_what_is_imported_and_nothing_else() -> None:
    """Each of our modules is imported where what is left out cannot be. What is locked is imported then, or
    is listed here with when it is."""
    left_out = (IMAGE / "left-out.txt").read_text().split()
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, json.dumps(left_out)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    imported = set(json.loads(done.stdout))
    assert not locked() & set(left_out)
    assert locked() - imported <= set(LATER)


def test_help_needs_nothing_that_is_left_out() -> None:
    """The command line imports its own parts when it is used."""
    left_out = (IMAGE / "left-out.txt").read_text().split()
    called = PROGRAM.partition("for found in")[0] + "sys.argv = ['coatcheck', 'serve', '--help']\n"
    called += "from coatcheck.cli import main\nsys.exit(main())\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", called, json.dumps(left_out)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "--settings" in done.stdout, done.stderr[-2000:]
