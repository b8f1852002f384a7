"""What a machine can make a sandbox of: measured, not claimed, and said in one line."""

import os
from pathlib import Path

import pytest

from coatcheck.containers import cgroup
from coatcheck.decision.session import Isolation
from coatcheck.durable import accelerator
from coatcheck.durable.accelerator import Verdict
from coatcheck.durable.backends import Backends
from coatcheck.sandbox.sandbox import Backend, SandboxProblem, SandboxRefused
from coatcheck.settings.daemon import Settings

pytestmark = pytest.mark.needs_debian("bwrap", "cc", "qemu-system-x86_64")


@pytest.fixture
def backends(tmp_path: Path, pytestconfig: pytest.Config) -> Backends:
    """Of a machine on which no image was built; the agent is kept from run to run."""
    cache = pytestconfig.cache.mkdir("no-images")
    return Backends(Settings(state_dir=tmp_path / "state", cache_dir=cache))


def test_a_microvm_is_preferred_and_its_isolation_is_the_measured_one(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: the second sandbox need not wait for it."""
    asked: list[object] = []

    async def judge(qemu: Path, kernel: Path | None, cache: Path | None) -> Verdict:
        asked.append(kernel)
        return Verdict(Isolation.EMULATED, "emulated, because there is no /dev/kvm")

    monkeypatch.setattr(accelerator, "judge", judge)
    monkeypatch.setattr("coatcheck.durable.backends.find", lambda cache, name: tmp_path / name)
    for backend in (None, Backend.MICROVM):
        choice = backends.choose(backend, None)
        assert (choice.backend, choice.isolation) == (Backend.MICROVM, Isolation.EMULATED)
        assert choice.why == "TCG, not a security boundary: there is no /dev/kvm"
        assert choice.image == str(tmp_path / "default")
    assert asked == [tmp_path / "default/vmlinuz"]


def test_where_there_is_no_image_it_is_namespaces_and_why_is_said(backends: Backends) -> None:
    """But only for who left the choice to us."""
    choice = backends.choose(None, None)
    assert (choice.backend, choice.isolation) == (Backend.NAMESPACE, Isolation.NAMESPACE)
    assert "no microVM here" in choice.why and "image build" in choice.why
    assert choice.agent is not None and Path(choice.agent).is_file()
    for backend, image in ((Backend.MICROVM, None), (None, "mine"), (Backend.NAMESPACE, "mine")):
        with pytest.raises(SandboxRefused) as refused:
            backends.choose(backend, image)
        assert refused.value.problem is SandboxProblem.UNKNOWN_IMAGE and refused.value.hint


@pytest.mark.needs_debian("runsc")
def test_gvisor_is_chosen_only_by_name_and_refused_where_it_is_not(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never something weaker in its place."""
    choice = backends.choose(Backend.GVISOR, None)
    assert (choice.backend, choice.isolation) == (Backend.GVISOR, Isolation.GVISOR)
    assert choice.identities == ("agent",)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxRefused) as refused:
        backends.choose(Backend.GVISOR, None)
    assert refused.value.problem is SandboxProblem.NO_BACKEND and "install runsc" in refused.value.hint


def test_a_machine_without_either_says_what_to_install(
    backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU first; for namespaces runc where there is root, else bubblewrap."""
    monkeypatch.setenv("PATH", str(tmp_path))
    namespaces = "runc" if os.geteuid() == 0 and cgroup.writable() else "bubblewrap"
    for backend, program in ((Backend.MICROVM, "qemu-system-x86"), (Backend.NAMESPACE, namespaces)):
        with pytest.raises(SandboxRefused) as refused:
            backends.choose(backend, None)
        assert refused.value.problem is SandboxProblem.NO_BACKEND and program in refused.value.hint
