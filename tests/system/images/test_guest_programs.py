"""What runs in a sandbox is compiled once, and says so when it cannot be."""

import shutil
import subprocess
from pathlib import Path

import pytest

from coatcheck.images.guest_programs import AGENT_SOURCES, FLAGS, CompileError, agent, program

SOURCE = '#include "words.h"\n#include <stdio.h>\nint main(void) { return puts(WORDS) < 0; }\n'


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    (tmp_path / "words.h").write_text('#define WORDS "made"\n')
    (tmp_path / "main.c").write_text(SOURCE)
    return sorted(tmp_path.glob("*.[ch]"))


def test_a_program_is_made_once_for_its_content(sources: list[Path], tmp_path: Path) -> None:
    """The same source is the same file; another header is another."""
    cache = tmp_path / "cache"
    made = program("words", sources, cache)
    assert subprocess.run([made], capture_output=True, check=True).stdout == b"made\n"
    stamp = made.stat().st_mtime_ns
    assert program("words", sources, cache) == made and made.stat().st_mtime_ns == stamp
    sources[1].write_text('#define WORDS "anew"\n')
    anew = program("words", sources, cache)
    assert subprocess.run([anew], capture_output=True, check=True).stdout == b"anew\n"
    assert {path.name for path in cache.iterdir()} == {made.name, anew.name}
    assert cache.stat().st_mode & 0o777 == 0o700


def test_it_needs_nothing_of_the_image(sources: list[Path], tmp_path: Path) -> None:
    """Static: an image may have another C library, or none."""
    made = program("words", sources, tmp_path / "cache")
    assert b"INTERP" not in subprocess.run(["readelf", "-lW", made], capture_output=True, check=True).stdout


def test_no_compiler_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback on the first `sandbox run`."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(CompileError, match="no C compiler") as told:
        agent(tmp_path / "cache")
    assert "apt-get install gcc libc6-dev" in told.value.hint


def test_what_the_compiler_says_is_shown(tmp_path: Path) -> None:
    """A missing header is a package that is missing."""
    (tmp_path / "main.c").write_text("#include <nonesuch.h>\n")
    with pytest.raises(CompileError, match=r"nonesuch\.h"):
        program("broken", [tmp_path / "main.c"], tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_agents_source_has_no_warning(tmp_path: Path) -> None:
    """Of those that a compiler can find; users' newer compilers may know more, and are not stopped by it."""
    strict = ("-Werror", "-Wshadow", "-Wformat=2", "-Wconversion", "-Wno-sign-conversion", "-fsyntax-only")
    found = subprocess.run(
        ["cc", *(flag for flag in FLAGS if not flag.startswith(("-Wl,", "-static"))), *strict,
         *(f"-I{place}" for place in AGENT_SOURCES),
         *(str(file) for place in AGENT_SOURCES for file in sorted(place.glob("*.c")))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")


def test_the_agent_is_short() -> None:
    """A person reads its source to know what runs in a sandbox: all of it, in however many files."""
    files = [path for place in AGENT_SOURCES for path in place.glob("*.[ch]")]
    assert sum(path.read_text().count("\n") for path in files) <= 3200
