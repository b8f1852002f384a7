"""Container images' archives, in both forms, and broken ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from coatcheck.images.archive import BadArchive
from coatcheck.images.oci import ContainerConfig, read_archive
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Tree
from tests.images.tars import blob, descriptor, docker, gzipped, layout, tar

CONFIG = {
    "Env": ["PATH=/opt/bin:/bin", "EMPTY=", "A=b=c"],
    "Entrypoint": ["/bin/sh", "-c"],
    "Cmd": ["hello"],
    "WorkingDir": "/srv",
    "User": "1000",
}
LAYERS = (tar(("bin/a", b"first"), ("bin/b", b"old")), tar(("bin/b", b"new"), ("bin/.wh.c", b"")))


def read(path: Path, tmp_path: Path) -> tuple[Tree, ContainerConfig]:
    tree = Tree()
    return tree, read_archive(path, tree, Spool(tmp_path / "spool"), lambda _line: None)


def held(tree: Tree, path: str) -> bytes:
    node = tree.find(path)
    assert node is not None and node.content is not None
    return node.content.read_bytes()


@pytest.mark.parametrize("write", [layout, docker])
def test_both_forms_give_layers_and_how_to_start(write: Callable[..., Path], tmp_path: Path) -> None:
    """Later layers lie over earlier ones; a link to a layer that already exists is followed."""
    tree, config = read(write(tmp_path / "image.tar", LAYERS, CONFIG), tmp_path)
    assert held(tree, "bin/a") == b"first"
    assert held(tree, "bin/b") == (
        b"new" if write is layout else b"old"
    )  # docker()'s last layer is the first
    assert dict(config.environment) == {"PATH": "/opt/bin:/bin", "EMPTY": "", "A": "b=c"}
    assert config.command == ("/bin/sh", "-c", "hello")
    assert (config.working_directory, config.user) == ("/srv", "1000")


@pytest.mark.parametrize("pack", [gzipped, zstandard.ZstdCompressor().compress])
def test_layers_may_be_compressed(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """By what they are, not by what a media type says."""
    tree, _ = read(layout(tmp_path / "image.tar", [pack(layer) for layer in LAYERS]), tmp_path)
    assert held(tree, "bin/b") == b"new"


def test_a_layer_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    """One flipped byte in a registry's blob, or another blob under its name."""
    path = layout(tmp_path / "image.tar", LAYERS)
    path.write_bytes(path.read_bytes().replace(b"first", b"forst"))
    with pytest.raises(BadArchive, match="is not what its name says"):
        read(path, tmp_path)


@pytest.mark.parametrize(
    "damage", [b"\x1f\x8b" + b"x" * 600, gzipped(LAYERS[0])[:-20], b"\x28\xb5\x2f\xfd" + b"x" * 600]
)
def test_a_layer_that_cannot_be_decompressed_is_named(damage: bytes, tmp_path: Path) -> None:
    """Torn or faked compression is the archive's fault, not a traceback."""
    with pytest.raises(BadArchive):
        read(layout(tmp_path / "image.tar", [damage]), tmp_path)


def documents(index: Any) -> bytes:
    return tar(("index.json", json.dumps(index).encode() if not isinstance(index, bytes) else index))


_SELF = blob(b"{}")
BROKEN = {
    "nothing in it": tar(),
    "not a tar": b"PK\x03\x04" + bytes(600),
    "compressed as a whole": gzipped(documents({})),
    "a plain root": tar(("etc/passwd", b"root")),
    "an index that is no JSON": documents(b"{"),
    "an index that is a list": documents([]),
    "JSON without an end": documents(b"[" * 100_000),
    "two images": documents({"manifests": [descriptor(b"a"), descriptor(b"b")]}),
    "an image for ARM": documents(
        {"manifests": [descriptor(b"a", platform={"os": "linux", "architecture": "arm64"})]}
    ),
    "a blob that is missing": documents({"manifests": [descriptor(b"a")]}),
    "a hash that is a path": documents({"manifests": [{"digest": "sha256:../../../etc/shadow"}]}),
    "a hash of another kind": documents({"manifests": [{"digest": "md5:abc"}]}),
    "no layers": documents({"layers": [], "config": descriptor(b"{}")}) + b"",
    "layers that are no list": documents({"layers": 5}),
    "an index that leads to itself": tar(
        ("index.json", json.dumps({"manifests": [descriptor(b"{}")]}).encode()), _SELF
    ),
    "Docker's, with two images": tar(("manifest.json", b"[{},{}]")),
    "Docker's, with a layer that is a link to nowhere": tar(
        ("manifest.json", json.dumps([{"Config": "c", "Layers": ["../../etc/shadow"]}]).encode()),
        ("c", b"{}"),
    ),
    "Docker's, with too many layers": tar(
        ("manifest.json", json.dumps([{"Config": "c", "Layers": ["l"] * 200}]).encode()),
        ("c", b"{}"),
        ("l", tar()),
    ),
    "a document of 5 MB": documents(b" " * 5_000_000),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_is_no_image_is_refused_with_words(content: bytes, tmp_path: Path) -> None:
    """Each names the file, what is wrong, and what to do."""
    path = tmp_path / "image.tar"
    path.write_bytes(content)
    with pytest.raises(ImageError) as raised:
        read(path, tmp_path)
    assert "image.tar" in str(raised.value) and raised.value.hint


def test_a_configuration_of_odd_types_is_no_traceback(tmp_path: Path) -> None:
    """It only says how to start; what is no list of words is no words."""
    odd = {"Env": 5, "Cmd": "sh", "Entrypoint": None, "WorkingDir": None, "User": 0}
    _, config = read(layout(tmp_path / "image.tar", LAYERS, odd), tmp_path)
    assert (dict(config.environment), config.command, config.working_directory) == ({}, (), "")
