"""Debian's kernel as it is made ready, and odd modules."""

import lzma
import struct

import pytest
import zstandard

from coatcheck.images.kernel import (
    MODULES,
    bootable,
    dependencies,
    lean_module,
    load_order,
    plain_module,
)
from coatcheck.images.problem import ImageError
from tests.images.caches import users_kernel

_MAGIC = b"~Module signature appended~\n"


def module(*needs: str) -> bytes:
    return b"\x7fELF...\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0name=x\0"


def test_what_a_module_needs_loads_before_it() -> None:
    """Each once, however many need it; - and _ are the same to the kernel."""
    available = {
        "virtio_ring": module(),
        "virtio": module("virtio_ring"),
        "virtio-rng": module("virtio", "virtio_ring"),
        "virtio_blk": module("virtio", "virtio_ring"),
    }
    order = load_order(("virtio_rng", "virtio_blk"), available, frozenset())
    assert order == ("virtio_ring", "virtio", "virtio-rng", "virtio_blk")


def test_what_is_built_in_is_not_loaded_and_what_is_nowhere_is_told() -> None:
    """A kernel of another flavour lacks things, and then the guest would hang without a word."""
    available = {"a": module("b")}
    assert load_order(("a",), available, frozenset({"b"})) == ("a",)
    with pytest.raises(ImageError, match="has no module b"):
        load_order(("a",), available, frozenset())


def test_a_circle_of_needs_ends() -> None:
    """It cannot be loaded, and must not be looked into for ever either."""
    with pytest.raises(ImageError, match="need each other"):
        load_order(("a",), {"a": module("b"), "b": module("a")}, frozenset())


@pytest.mark.parametrize("pack", [lambda raw: raw, lzma.compress, zstandard.ZstdCompressor().compress])
def test_a_module_is_loaded_plain_and_unsigned(pack: object) -> None:
    """init knows no compression, and checking a signature takes an emulated guest longer than loading."""
    assert callable(pack)
    raw = module("x")
    signature = b"s" * 300
    signed = raw + signature + struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, len(signature)) + _MAGIC
    suffix = {b"\x28": ".zst", b"\xfd": ".xz"}.get(pack(signed)[:1], "")
    assert plain_module(f"kernel/drivers/some.ko{suffix}", pack(signed)) == ("some", raw)
    assert dependencies(raw) == ("x",)


def test_debians_kernel_is_an_elf_with_its_modules_in_order() -> None:
    """As `make setup` left it: nothing is unpacked again here."""
    kernel_part = users_kernel()
    assert (kernel_part / "vmlinuz").read_bytes()[:4] == b"\x7fELF"
    order = [name.removesuffix(".ko") for name in (kernel_part / "load").read_text().split()]
    assert set(MODULES) <= set(order)
    seen: set[str] = set()
    for name in order:
        content = (kernel_part / f"{name}.ko").read_bytes()
        assert content.startswith(b"\x7fELF") and not content.endswith(_MAGIC)
        assert b".BTF\0" not in content and b".orc_unwind" not in content
        assert {need.replace("-", "_") for need in dependencies(content)} - {"crc32c"} <= seen
        seen.add(name.replace("-", "_"))


def test_what_is_no_module_is_told() -> None:
    """By objcopy's own words, before an image is made of it."""
    with pytest.raises(ImageError, match="objcopy"):
        lean_module(b"no ELF at all")


def test_what_is_no_kernel_is_refused_and_an_odd_one_boots_as_it_is() -> None:
    """A payload of a kind that we cannot open is left to the kernel's own code."""
    with pytest.raises(ImageError, match="not a bzImage"):
        bootable(bytes(4096))
    image = bytearray(8192)
    image[0x202:0x206] = b"HdrS"
    assert bootable(bytes(image)) == bytes(image)
