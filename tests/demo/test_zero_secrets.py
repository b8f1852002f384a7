"""A search that never finds anything would pass every demo: here it has to find."""

import base64
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.zero_secrets import Searched, needles, search_bytes, search_processes
from tests.known_secrets import known_secret


@contextmanager
def holding(code: str, *, directory: Path, argument: str = "") -> Iterator[int]:
    """A process that ran `code` with `secret` read from its input, and waits."""
    program = (
        f"import sys\nsecret = sys.stdin.readline().strip()\n{code}\nprint(flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(argument.encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


@pytest.mark.parametrize(
    "code",
    [
        "kept = secret * 3",
        "kept = bytearray(20 << 20); kept[8388600:8388600] = secret.encode()",  # where two blocks meet
        "import base64; kept = base64.b64encode(b'user:' + secret.encode()); secret = None",
        "open('note', 'w').write('key=' + secret)",
        "import os; os.makedirs('a/b'); open('a/b/c', 'w').write(secret)",
    ],
)
def test_a_secret_in_memory_or_in_a_file_is_found(tmp_path: Path, code: str) -> None:
    """Plain, in Base64, and across the seam of two blocks."""
    secret = known_secret("held by a sandbox")
    with holding(code, directory=tmp_path, argument=secret) as pid:
        found = search_processes(pid, needles({"it": secret}), tmp_path)
    assert found.hits["it"] >= 1
    assert found.processes == 1 and found.memory_bytes > 0 and found.unreadable == []


def test_a_secret_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    """The other half."""
    with holding("pass", directory=tmp_path) as pid:
        assert not search_processes(pid, needles({"it": known_secret("held by nobody")}), tmp_path).hits


def test_a_secret_in_a_childs_environment_is_found(tmp_path: Path) -> None:
    """All descendants are searched, not only the first process."""
    secret = known_secret("in an environment")
    code = (
        "import subprocess; child = subprocess.Popen(['/bin/sleep', '30'], env={'KEY': secret})\n"
        "import atexit; atexit.register(child.kill); secret = None"
    )
    with holding(code, directory=tmp_path, argument=secret) as pid:
        found = search_processes(pid, needles({"it": secret}), tmp_path)
    assert found.hits["it"] >= 1 and found.processes == 2


def test_a_link_does_not_lead_the_search_out(tmp_path: Path) -> None:
    """What the sandbox links to on the host is the host's."""
    secret, box = known_secret("of the host"), tmp_path / "box"
    box.mkdir()
    (tmp_path / "outside").write_text(secret)
    with holding("import os; os.symlink('../outside', 'link')", directory=box) as pid:
        assert not search_processes(pid, needles({"it": secret}), box).hits


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"abc"])
def test_base64_is_seen_through_wherever_it_begins(before: bytes) -> None:
    """A string has three faces in Base64."""
    secret = known_secret("encoded")
    said = base64.b64encode(before + secret.encode() + b"after")
    assert search_bytes(said, needles({"it": secret})).hits["it"] == 1


def test_searches_add_up() -> None:
    """The summary is about all of them."""
    total = search_bytes(b"the handle", [(b"handle", "a")])
    total.add(Searched(processes=2, files=3, unreadable=["process 7"]))
    assert (total.processes, total.files, total.output_bytes, total.hits["a"]) == (2, 3, 10, 1)
    assert total.unreadable == ["process 7"]
