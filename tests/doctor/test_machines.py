"""What sandboxes can be here, as the doctor says it."""

from pathlib import Path

import pytest

from coatcheck.doctor.finding import Level
from coatcheck.doctor.machines import containers, microvms, namespaces
from tests.doctor.subject import only, subject


@pytest.mark.parametrize(
    ("name", "closed", "opened"),
    [
        ("user/max_user_namespaces", "0", "15000"),
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ],
)
def test_closed_user_namespaces_are_warned_about(tmp_path: Path, name: str, closed: str, opened: str) -> None:
    """bubblewrap says only that an operation is not permitted; which switch it was, the doctor knows."""
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(f"{closed}\n")
    found = only(namespaces(subject(tmp_path), tmp_path))
    assert found.level is Level.WARNING and name.replace("/", ".") in found.message
    (tmp_path / name).write_text(f"{opened}\n")
    assert only(namespaces(subject(tmp_path), tmp_path)).level is Level.OK


def test_what_makes_sandboxes_without_a_virtual_machine_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By kind of isolation, with what to install for the others."""
    program = tmp_path / "runsc"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    namespace, gvisor = containers(subject(tmp_path))
    assert (namespace.level, gvisor.level) == (Level.OK, Level.OK)
    assert "apt-get install" in namespace.message and "missing" in namespace.message
    assert gvisor.message == f"sandboxes with `isolation: gvisor` can be had: {program}"


def test_a_machine_without_qemu_is_told_how_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mistake: a daemon need not run sandboxes."""
    monkeypatch.setenv("PATH", str(tmp_path))
    found = only(microvms(subject(tmp_path)))
    assert found.level is Level.OK and "apt-get install qemu-system-x86" in found.message


@pytest.mark.needs_debian("qemu-system-x86_64")
def test_the_verdict_on_kvm_is_one_line_with_its_reason(tmp_path: Path) -> None:
    """And says what is still to be done for a first microVM."""
    found = only(microvms(subject(tmp_path, cache_dir=tmp_path / "cache")))
    assert found.message.startswith(("hardware: KVM works", "emulated: "))
    assert "no image is built yet" in found.message and "\n" not in found.message
