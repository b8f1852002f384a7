"""An image in a registry runs in a microVM: one command makes it a guest's root, the next runs it."""

import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.cli.transcript import COATCHECK, environment
from tests.images.caches import own_cache
from tests.images.registry import running
from tests.images.tars import saved, tar

pytestmark = pytest.mark.needs_debian(
    "mke2fs", "cc", "qemu-system-x86_64", "bwrap", "skopeo", "docker-registry"
)


def shell() -> bytes:
    """This machine's /bin/sh and what it is linked with: the smallest root that runs something."""
    said = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True).stdout
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for path in ["/bin/sh", *re.findall(r"(/\S+) \(0x", said)]:
            archive.add(os.path.realpath(path), path.removeprefix("/"))
        content = b"x"
        old = tarfile.TarInfo("etc/old")
        old.size = len(content)
        archive.addfile(old, io.BytesIO(content))
    return layer.getvalue()


def test_an_image_of_a_registry_boots(tmp_path: Path) -> None:
    """Both layers are there, the whited-out file is not, and the user is the sandbox's, not the image's."""
    own_cache(tmp_path / "cache")
    variables = environment(COATCHECK_CACHE_DIR=str(tmp_path / "cache"))
    layers = [
        shell(),
        tar(("etc/.wh.old", b""), ("etc/motto", b"from a registry\n")),
    ]

    def coatcheck(*words: str) -> str:
        done = subprocess.run(
            [COATCHECK, *words], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with running(tmp_path / "registry") as registry:
        archive = saved(tmp_path / "image.tar", layers, {"User": "0"})
        pushed = registry.push(archive, "team/agent")
        coatcheck(
            *("image", "build", "--name", "theirs", "--from-registry", f"{pushed.name}@{pushed.digest}"),
            *("--auth-file", "registry/auth.json", "--registry-certs", "registry/certs"),
        )
    script = 'read line </etc/motto; test -e /etc/old || echo "$line, $HOME"'
    ran = coatcheck(
        "sandbox", "run", "--image", "theirs", "--backend", "microvm", "--", "/bin/sh", "-c", script
    )
    assert ran == "from a registry, /home/agent\n"
