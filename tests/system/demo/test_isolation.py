import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo import isolation
from demo.isolation import (
    NAMESPACES,
    Layout,
    bubblewrap_arguments,
    probe,
    python_paths,
    shared_namespaces,
)


def layout(tmp_path: Path) -> Layout:
    for name in ("trust", "programs"):
        (tmp_path / name).mkdir()
    (tmp_path / "egress.sock").touch()
    return Layout(tmp_path / "egress.sock", tmp_path / "trust", tmp_path / "programs", python_paths())


def inside(tmp_path: Path, code: str, **environment: str) -> str:
    """What `code` prints in a sandbox."""
    arguments = bubblewrap_arguments(layout(tmp_path), environment, [sys.executable, "-I", "-c", code])
    ran = subprocess.run(["bwrap", *arguments], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_namespace_and_no_way_back_is_asked_for(tmp_path: Path) -> None:
    """The flags that the demo's claim rests on."""
    arguments = bubblewrap_arguments(layout(tmp_path), {"NAME": "value"}, ["program"])
    for flag in ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv"):
        assert flag in arguments
    assert arguments[arguments.index("--setenv") :][:3] == ("--setenv", "NAME", "value")
    assert arguments[-2:] == ("--", "program")


def test_the_only_thing_bound_for_writing_is_the_socket(tmp_path: Path) -> None:
    """All else of the host is read-only."""
    arguments = bubblewrap_arguments(layout(tmp_path), {}, ["program"])
    writable = [arguments[n + 1] for n, word in enumerate(arguments) if word in ("--bind", "--dev-bind")]
    assert writable == [str(tmp_path / "egress.sock")]


@pytest.mark.needs_debian("bwrap", "runc")
def test_where_bubblewrap_works_all_namespaces_are_new() -> None:
    """The probe compares; it does not believe the flags."""
    found = probe()
    assert found.bubblewrap is not None, found.says
    assert found.says == "own user, network, process, IPC, UTS and mount namespaces, by bubblewrap"


def test_without_bubblewrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of the demo needs a reason."""
    monkeypatch.setattr("demo.isolation.shutil.which", lambda name: None)
    assert probe() == isolation.Isolation(None, "bubblewrap is missing (apt-get install bubblewrap)")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'bwrap: No permissions to create a new namespace' >&2; exit 1", "No permissions to create"),
        # runs the command as it is, as if the flags had been ignored
        ('while test "$1" != --; do shift; done; shift; exec "$@"', "shares the host's user, network"),
    ],
)
def test_a_bubblewrap_that_isolates_nothing_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    """It fails, or it runs and shares: neither is isolation."""
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setattr("demo.isolation.shutil.which", lambda name: str(fake))
    found = probe()
    assert found.bubblewrap is None and says in found.says


def test_a_namespace_that_is_ours_is_named() -> None:
    """And one that was not told counts as ours."""
    ours = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}
    assert shared_namespaces(ours) == list(NAMESPACES.values())
    assert shared_namespaces(dict.fromkeys(NAMESPACES, "other") | {"net": ours["net"]}) == ["network"]
    assert shared_namespaces({}) == list(NAMESPACES.values())


@pytest.mark.needs_debian("bwrap", "runc")
def test_inside_there_is_nothing_of_the_host(tmp_path: Path) -> None:
    """No environment, no process, no network interface, no file outside the system's programs."""
    code = """
import json, os, socket
print(json.dumps({
    "environment": sorted(os.environ), "root": os.listdir("/"), "etc": os.listdir("/etc"),
    "processes": sum(n.isdigit() for n in os.listdir("/proc")), "uid": os.getuid(),
    "interfaces": [name for _, name in socket.if_nameindex()], "home": os.listdir("."),
    "writable": [top for top in ("/usr", "/opt/demo", "/run/coatcheck/trust") if os.access(top, os.W_OK)],
    "private": os.path.exists("/etc/shadow") or os.path.exists("/etc/ssl/private"),
}))
"""
    found = json.loads(inside(tmp_path, code, HANDLE="cch_example"))
    assert set(found["environment"]) - {"LC_CTYPE"} == {"HANDLE", "PWD"}
    assert (found["interfaces"], found["uid"], found["home"]) == (["lo"], 1000, [])
    assert found["processes"] <= 3
    assert found["writable"] == [] and not found["private"]
    assert set(found["etc"]) <= {"alternatives", "ld.so.cache", "ssl"}
