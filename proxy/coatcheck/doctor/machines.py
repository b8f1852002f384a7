"""What sandboxes of this machine can be: whether users may make namespaces, and what a microVM is."""

import asyncio
from pathlib import Path

from coatcheck.containers.container import find_program
from coatcheck.containers.jail import find_qemu
from coatcheck.decision.session import Isolation
from coatcheck.doctor.finding import Finding, Subject, ok, warning
from coatcheck.durable import accelerator
from coatcheck.images.cache import find
from coatcheck.images.problem import ImageError
from coatcheck.sandbox.machine import MachineError

_CLOSED_BY = {
    "user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=15000"),
    "kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    "kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "allow bwrap `userns` in AppArmor, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}
"""Below /proc/sys: the value that closes user namespaces to ordinary users, and how to open them."""


def namespaces(subject: Subject, settings: Path = Path("/proc/sys")) -> list[Finding]:
    """Both backends need them: bubblewrap is around QEMU, too."""
    check = "namespaces"
    found = []
    for name, (closed, hint) in _CLOSED_BY.items():
        try:
            value = (settings / name).read_text().strip()
        except OSError:
            continue  # not on this kernel
        if value == closed:
            where = name.replace("/", ".")
            found += warning(check, f"users may make no namespaces ({where} is {value}): no sandboxes", hint)
    return found or ok(check, "users may make namespaces, which sandboxes need")


def containers(subject: Subject) -> list[Finding]:
    """What makes sandboxes without a virtual machine here, and whether gVisor is among it."""
    found = []
    for isolation in (Isolation.NAMESPACE, Isolation.GVISOR):
        try:
            found += ok(
                str(isolation),
                f"sandboxes with `isolation: {isolation}` can be had: {find_program(isolation)}",
            )
        except MachineError as error:
            found += ok(str(isolation), f"none here: {error}; {error.hint}")
    return found


def microvms(subject: Subject) -> list[Finding]:
    """What one is here, and why; measured anew, which takes a third of a second."""
    check = "microVMs"
    try:
        qemu = find_qemu()
    except MachineError as error:
        return ok(check, f"none here: {error}; {error.hint}")
    try:
        kernel: Path | None = find(subject.settings.cache, "default") / "vmlinuz"
        image = ""
    except ImageError as error:
        kernel, image = None, f"; no image is built yet: {error.hint}"
    verdict = asyncio.run(accelerator.judge(qemu, kernel, None))
    return ok(check, f"{verdict.isolation}: {verdict.why.removeprefix('emulated, because ')}{image}")
