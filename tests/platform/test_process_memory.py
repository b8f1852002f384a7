"""Whether a child of ours can read what we began with."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from coatcheck.platform.process_memory import hide_memory

NOBODY = 65534


def child_reads_environ_of_parent() -> bool:
    """Asked by a real child, of the same user, without any capability."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            Path(f"/proc/{parent}/environ").read_bytes()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def before_and_after() -> int:
    """Two bits, as an ordinary user (root may read everything): read before, read after."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # changing the user took it away
    before = child_reads_environ_of_parent()
    hide_memory()
    return before * 2 + child_reads_environ_of_parent()


def test_a_child_reads_our_environment_before_and_not_after() -> None:
    """The first half shows that the second can fail. In a process of its own, which has one thread."""
    assert subprocess.run([sys.executable, __file__], check=False).returncode == 2


KEEPS = """
import re
from pathlib import Path
from coatcheck.platform.process_memory import give_back_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

kept = [bytearray(20_000) for _ in range(4_000)]
del kept[::2]
before = resident()
give_back_memory()
assert resident() < before - 20_000, (before, resident())
"""


def test_freed_memory_goes_back_to_the_system() -> None:
    """40 MB between blocks that are in use: without being asked, glibc keeps them."""
    subprocess.run([sys.executable, "-c", KEEPS], check=True)


RAISES = """
import resource, sys
from coatcheck.platform.process_memory import OPEN_FILES, raise_file_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 250))
raise_file_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (250, 250)
"""


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    """From a shell's 1,024 to what ten thousand sessions need; the hard limit stays the system's."""
    subprocess.run([sys.executable, "-c", RAISES], check=True)


if __name__ == "__main__":
    sys.exit(before_and_after())
