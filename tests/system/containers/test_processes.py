"""Trees of real processes: found, stopped, let on."""

import subprocess
import sys
import time
from pathlib import Path

from coatcheck.containers import processes

NESTED = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_and_all_that_came_from_it_are_found_and_nobody_else() -> None:
    """Whatever they call themselves: the name in /proc/<pid>/stat is theirs to choose."""
    rename = "open('/proc/self/comm','w').write(') S 1 1');import time;time.sleep(60)"
    first = subprocess.Popen([sys.executable, "-c", NESTED, rename], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen(["sleep", "60"])
    try:
        assert first.stdout
        child = int(first.stdout.readline())
        while ") S 1 1" not in Path(f"/proc/{child}/stat").read_text():
            time.sleep(0.005)
        assert processes.tree(first.pid) == tuple(sorted((first.pid, child)))
        processes.stop_tree(first.pid)
        while state(child) != "T" or state(first.pid) != "T":
            time.sleep(0.005)
        assert state(other.pid) != "T"
        processes.continue_tree(first.pid)
        while "T" in (state(child), state(first.pid)):
            time.sleep(0.005)
    finally:
        for pid in reversed(processes.tree(first.pid)):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        first.wait()
        other.kill()
        other.wait()
    assert processes.tree(first.pid) == ()


def test_a_tree_that_goes_on_forking_is_stopped_all_the_same() -> None:
    """Each round stops all that there are, and what is stopped does not fork."""
    fork = "import os,time\nwhile True:\n if os.fork(): os.wait()\n else:\n  time.sleep(0.002); os._exit(0)"
    first = subprocess.Popen([sys.executable, "-c", fork])
    try:
        while len(processes.tree(first.pid)) < 2:
            time.sleep(0.005)
        processes.stop_tree(first.pid)
        before = processes.tree(first.pid)
        time.sleep(0.1)
        assert processes.tree(first.pid) == before
    finally:
        for pid in reversed(processes.tree(first.pid)):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        first.wait()


def test_who_ends_takes_his_session_along() -> None:
    """Also what was left to process 1 meanwhile, and nobody of another session."""
    spawn = (
        "import subprocess as s; s.Popen(['sleep','60'], process_group=0); s.Popen(['sleep','61']); input()"
    )
    first = subprocess.Popen([sys.executable, "-c", spawn], stdin=subprocess.PIPE, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"])
    try:
        while len(left := processes.tree(first.pid)) < 3:
            time.sleep(0.005)
        assert not processes.has_ended(first.pid)
        first.kill()
        while not processes.has_ended(first.pid):
            time.sleep(0.005)
        assert not [pid for pid in left[1:] if Path(f"/proc/{pid}").exists() and state(pid) != "Z"]
        assert first.wait() == -9 and processes.has_ended(first.pid)
        assert other.poll() is None
    finally:
        for child in (first, other):
            child.kill()
            child.wait()
