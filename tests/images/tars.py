"""Tar archives as a test wants them, and container images made of them."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

type Entry = tuple[str, bytes] | tarfile.TarInfo
"""A file with its content, or anything else that an archive can hold."""


def entry(name: str, kind: bytes = tarfile.DIRTYPE, link: str = "", **attributes: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o755
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info


def tar(*entries: Entry) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for one in entries:
            if isinstance(one, tarfile.TarInfo):
                archive.addfile(one)
            else:
                info = tarfile.TarInfo(one[0])
                info.size, info.mode = len(one[1]), 0o644
                archive.addfile(info, io.BytesIO(one[1]))
    return file.getvalue()


def blob(content: bytes) -> tuple[str, bytes]:
    return f"blobs/sha256/{hashlib.sha256(content).hexdigest()}", content


def descriptor(content: bytes, **more: Any) -> dict[str, Any]:
    return {"digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content), **more}


def layout(path: Path, layers: Sequence[bytes], config: dict[str, Any] | None = None) -> Path:
    """An OCI layout as buildx writes it: an index, in it the image and an attestation that is none."""
    described = json.dumps({"architecture": "amd64", "config": config or {}}).encode()
    manifest = json.dumps(
        {"config": descriptor(described), "layers": [descriptor(layer) for layer in layers]}
    ).encode()
    amd64 = {"os": "linux", "architecture": "amd64"}
    unknown = {"os": "unknown", "architecture": "unknown"}
    inner = json.dumps(
        {"manifests": [descriptor(manifest, platform=amd64), descriptor(b"attestation", platform=unknown)]}
    ).encode()
    index = json.dumps({"manifests": [descriptor(inner)]}).encode()
    blobs = [blob(content) for content in (described, manifest, inner, *dict.fromkeys(layers))]
    path.write_bytes(tar(("oci-layout", b"{}"), ("index.json", index), *blobs))
    return path


def docker(path: Path, layers: Sequence[bytes], config: dict[str, Any] | None = None) -> Path:
    """As older Dockers write it; the last layer is a link to the first one's file, as for equal layers."""
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": ["x:latest"], "Layers": [*names, "again/layer.tar"]}]
    path.write_bytes(
        tar(
            *zip(names, layers, strict=True),
            entry("again/layer.tar", tarfile.SYMTYPE, "../0/layer.tar"),
            ("config.json", json.dumps({"config": config or {}}).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        )
    )
    return path


def saved(path: Path, layers: Sequence[bytes], config: dict[str, Any] | None = None) -> Path:
    """As `docker save` writes it, complete: other programs than ours read it."""
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": digests},
        "history": [{"created": "2024-01-01T00:00:00Z"} for _ in layers],
    }
    manifest = [{"Config": "config.json", "RepoTags": ["x:latest"], "Layers": names}]
    path.write_bytes(
        tar(
            ("manifest.json", json.dumps(manifest).encode()),
            ("config.json", json.dumps(described).encode()),
            *zip(names, layers, strict=True),
        )
    )
    return path


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, 1)
