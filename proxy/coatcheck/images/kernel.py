"""Debian's kernel package, made ready for a small machine: an ELF that boots at once, and a few modules.

The package is read as a tar stream from `dpkg-deb`; nothing of it is unpacked to disk.
"""

import gzip
import io
import lzma
import re
import struct
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from coatcheck.images import packages
from coatcheck.images.problem import ImageError
from coatcheck.images.programs import run

MODULES = (
    "virtio_mmio",  # finds the devices; Debian's kernel has it as a module
    "virtio_blk",  # root and overlay
    "virtio_console",  # the channel to the host
    "virtio-rng",  # fresh entropy at every boot
    "virtio_balloon",  # memory that is taken back while it runs
    "overlay",  # the disposable upper side of the root
    # The redirect of what does not ask for a proxy, in tables `ip`, `ip6` and `inet`.
    "nf_tables",
    "nft_chain_nat",
    "nft_redir",
)
"""What the guest needs; what that depends on comes along. Each costs milliseconds of every boot."""

FLAVOUR = "linux-image-cloud-amd64"
"""Debian's kernel for virtual machines: small, and everything that microvm needs is in it or a module."""

_SIGNATURE_MAGIC = b"~Module signature appended~\n"
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
_ELF = b"\x7fELF"
_PVH_NOTE = re.compile(rb"\x04\0\0\0[\x04\x08]\0\0\0\x12\0\0\0Xen\0")
"""XEN_ELFNOTE_PHYS32_ENTRY: by it QEMU starts an ELF kernel directly (xen/interface/elfnote.h)."""
_LZ4_SECONDS = 120
_OBJCOPY_SECONDS = 60
_LEAN = (
    "--strip-unneeded",
    *("--remove-section=.BTF", "--remove-section=.orc_header"),
    *("--remove-section=.orc_unwind", "--remove-section=.orc_unwind_ip"),
    "--remove-section=.rela.orc_unwind_ip",
)
_HINT = f"install another version of {FLAVOUR}; this one is not as Debian's are"


@dataclass(frozen=True, slots=True)
class Kernel:
    image: bytes
    """An ELF that QEMU starts by its PVH entry, or the bzImage where that cannot be had."""
    release: str
    modules: tuple[tuple[str, bytes], ...]
    """(file name, content), in the order in which they load."""


def read_package(archive: Path) -> Kernel:
    """The kernel in a linux-image package. ImageError when it lacks something that the guest needs."""
    image, release, built_in = b"", "", frozenset[str]()
    modules: dict[str, bytes] = {}
    with packages.content(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            base = member.name.rsplit("/", 1)[-1]
            if not member.isreg() or (file := tar.extractfile(member)) is None:
                continue
            if base.startswith("vmlinuz-"):
                image, release = file.read(), base.removeprefix("vmlinuz-")
            elif base == "modules.builtin":
                built_in = frozenset(
                    line.rsplit("/", 1)[-1].removesuffix(".ko") for line in file.read().decode().split()
                )
            elif ".ko" in base:
                name, content = plain_module(base, file.read())
                modules[name] = content
    if not image or not modules:
        raise ImageError(f"{archive.name} holds no kernel or no modules", _HINT)
    order = load_order(MODULES, modules, built_in)
    lean = tuple((f"{name}.ko", lean_module(modules[name])) for name in order)
    return Kernel(bootable(image), release, lean)


def bootable(image: bytes) -> bytes:
    """The ELF inside a bzImage: QEMU starts it directly, and an emulated guest need not decompress 50 MB, a
    tenth of its boot. The bzImage itself, which boots too, when there is none to be found."""
    if image[0x202:0x206] != b"HdrS":
        raise ImageError("the kernel is not a bzImage", _HINT)
    # The kernel's Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length
    start = ((image[0x1F1] or 4) + 1) * 512
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[start + offset : start + offset + length]
    try:
        kernel = _decompress(payload)
    except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError):
        return image
    return kernel if kernel.startswith(_ELF) and _PVH_NOTE.search(kernel) else image


def _decompress(payload: bytes) -> bytes:
    """The payload without the length that follows it, by its magic; empty for a kind that we do not know."""
    if payload.startswith(b"\x02\x21\x4c\x18"):
        # LZ4's legacy frame, which has no length: what follows it would be read as a block.
        with tempfile.TemporaryFile() as file:
            file.write(payload[:-4])
            file.seek(0)
            return run(["lz4", "-d", "-c"], _HINT, seconds=_LZ4_SECONDS, stdin=file).output
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(payload)).read()
    if payload.startswith(b"\xfd7zXZ"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=io.BytesIO(payload[:-4])).read()
    return b""


def plain_module(name: str, content: bytes) -> tuple[str, bytes]:
    """The module as the kernel loads it: (name without directory or suffix, ELF without signature).

    Trixie's are compressed, which init would have to undo. The signature goes too: checking it (RSA, 4096
    bits) is most of the time that loading takes in an emulated guest, and nothing there could tell a wrong
    one from a right one: an attacker who could change the initramfs could change the kernel beside it.
    """
    base = name.rsplit("/", 1)[-1]
    if base.endswith(".xz"):
        base, content = base[:-3], lzma.decompress(content)
    elif base.endswith(".zst"):
        base, content = base[:-4], zstandard.ZstdDecompressor().stream_reader(content).read()
    if content.endswith(_SIGNATURE_MAGIC):
        # struct module_signature: 8 bytes, then the signature's length, big endian (linux/module_signature.h)
        (length,) = struct.unpack(">I", content[-len(_SIGNATURE_MAGIC) - 4 : -len(_SIGNATURE_MAGIC)])
        content = content[: -len(_SIGNATURE_MAGIC) - 12 - length]
    return base.removesuffix(".ko"), content


def lean_module(content: bytes) -> bytes:
    """The module without what the kernel reads, checks and sorts when it loads it, and nobody uses.

    BTF is for tracing programs (a module that offers functions to BPF goes on without it since Linux 6.1.38),
    ORC for stack traces through the module. Without these and the names of local symbols a guest executes 12
    instead of 22 million instructions from init to its root (QEMU's -icount). ImageError when objcopy fails.
    """
    with tempfile.NamedTemporaryFile(prefix="module-", suffix=".ko") as file:
        file.write(content)
        file.flush()
        run(["objcopy", *_LEAN, file.name], _HINT, seconds=_OBJCOPY_SECONDS)
        return Path(file.name).read_bytes()  # objcopy may have put another file in its place


def load_order(
    wanted: Sequence[str], available: Mapping[str, bytes], built_in: frozenset[str]
) -> tuple[str, ...]:
    """`wanted` and all that they depend on, each after what it needs.

    Read from the modules themselves: the package holds no modules.dep, which its scripts would make.
    ImageError for one that is neither a module nor built into the kernel.
    """
    order: list[str] = []
    waiting: list[str] = []
    built = {_same(name) for name in built_in}
    modules = {_same(name): name for name in available}

    def add(name: str) -> None:
        found = modules.get(_same(name))
        if found is None:
            if _same(name) in built:
                return
            raise ImageError(
                f"the kernel package has no module {name}",
                "give a Debian kernel of the flavour `cloud`: --kernel linux-image-cloud-amd64",
            )
        if found in order:
            return
        if found in waiting:
            raise ImageError(f"the kernel's modules {', '.join(waiting)} need each other", _HINT)
        waiting.append(found)
        for needed in dependencies(available[found]):
            add(needed)
        order.append(waiting.pop())

    for name in wanted:
        add(name)
    return tuple(order)


def dependencies(module: bytes) -> tuple[str, ...]:
    """What the module's own .modinfo section says that it needs."""
    found = _DEPENDS.search(module)
    return tuple(name.decode() for name in found[1].split(b",") if name) if found else ()


def _same(name: str) -> str:
    return name.replace("-", "_")  # the kernel's own rule: virtio-rng.ko is the module virtio_rng
