"""What `coatcheck image build --profile` brings works in a microVM, as the user that agents are."""

import subprocess
from pathlib import Path

import pytest

from coatcheck.images.debian import PROFILES
from coatcheck.settings.daemon import Settings
from tests.cli.transcript import COATCHECK, environment

pytestmark = pytest.mark.needs_debian("mke2fs", "cc", "qemu-system-x86_64", "bwrap")

WORK = r"""
set -e
cd /tmp; test "$(id -un)" = agent
mkdir -p package && printf '[project]\nname = "hello"\nversion = "1"\n' >package/pyproject.toml
pip install --quiet --no-index --no-build-isolation --no-deps ./package
pip list 2>/dev/null | grep -q '^hello' && echo pip
node -e 'console.log("node " + 6 * 7)' && npm --version >/dev/null && echo npm
printf '#include <stdio.h>\nint main(void) { puts("cc"); }\n' >a.c && cc a.c -o a && ./a
printf '#include <iostream>\nint main() { std::cout << "c++" << std::endl; }\n' >b.cc && c++ b.cc -o b && ./b
printf 'all:\n\t@echo make\n' >Makefile && make
python3 -c 'import ctypes
for name in ("nss3", "nspr4", "gbm", "atk-bridge-2.0", "asound", "cups", "xkbcommon", "pango-1.0", "Xrandr"):
    ctypes.CDLL(next(f"lib{name}.so{end}" for end in ("", ".0", ".1", ".2")
                     if __import__("glob").glob(f"/usr/lib/*/lib{name}.so{end}")))
print("libraries")'
test "$(fc-list | wc -l)" -gt 4 && echo fonts
"""


def test_each_profile_does_what_it_is_for(tmp_path: Path) -> None:
    """Installing with pip, running Node, compiling C and C++, and loading what a browser links against."""
    # Kept from one run to the next: 600 packages are not downloaded each time.
    variables = environment(COATCHECK_CACHE_DIR=str(Settings().cache / "profile-tests"))
    names = [word for name in PROFILES for word in ("--profile", name)]
    built = subprocess.run(
        [COATCHECK, "image", "build", "--name", "work", *names],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(
        [COATCHECK, "sandbox", "run", "--image", "work", "--backend", "microvm", "--memory", "1024", "--",
         "bash", "-c", WORK],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert ran.stdout.split("\n")[:-1] == ["pip", "node 42", "npm", "cc", "c++", "make", "libraries", "fonts"]
