"""Building an image: a root, a kernel, an initramfs, each from the cache where nothing in it has changed."""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from coatcheck.images import guest_programs, manifest
from coatcheck.images.cache import Cache, check_name
from coatcheck.images.initramfs import initramfs
from coatcheck.images.parts import Part, Parts, Source, digest, hash_of, modules
from coatcheck.images.problem import ImageError

INIT_SOURCE = Path(__file__).parent / "init.c"


def build(
    cache: Path,
    name: str,
    source: Source,
    tell: Callable[[str], None],
    *,
    refresh: bool = False,
    force: bool = False,
) -> Path:
    """The directory of the image, now called `name`; built if the cache does not hold it.

    `refresh` asks apt for newer packages, which else nobody does once it is there. `force` builds it even so.
    `tell` gets a line for whatever takes longer than a moment. ImageError when it cannot be built.
    """
    check_name(name)
    _check_machine()
    cache = cache.absolute()  # apt takes relative ones for its own
    init = guest_programs.program("init", [INIT_SOURCE], cache / "guest").read_bytes()
    agent = guest_programs.agent(cache / "guest").read_bytes()
    images = Cache(cache)
    with images.building(tell):
        parts = Parts(cache, images, tell, refresh=refresh or force, force=force)
        core, root = parts.kernel(), parts.root(source)
        key = hash_of(manifest.FORMAT, core.path.name, root.path.name, digest(init), digest(agent))[:16]

        def complete(directory: Path) -> None:
            for part, file in ((core, "vmlinuz"), (root, "root.ext4")):
                os.link(part.path / file, directory / file)
            (directory / "initrd").write_bytes(initramfs(init, agent, modules(core)))
            _manifest(key, source, core, root, digest(agent)).write(directory)
            for path in directory.iterdir():
                path.chmod(0o444)

        if force:
            images.forget("complete", key)
        image = images.make("complete", key, complete)
        images.name(name, image)
        parts.keep_archives(sweep(images))
    return image


def sweep(images: Cache) -> list[manifest.Manifest]:
    """Remove images without a name, and parts that no image has: each update would leave some. Only while
    `images.building`. What is left."""
    named = {path.name for path in images.names().values()}
    for key in images.keys("complete") - named:
        images.forget("complete", key)
    used = [manifest.read(path) for path in images.names().values() if path.is_dir()]
    for key in images.keys("roots") - {one.root for one in used}:
        images.forget("roots", key)
    for key in images.keys("kernels") - {one.kernel for one in used}:
        images.forget("kernels", key)
    return used


def remove(cache: Path, name: str, tell: Callable[[str], None]) -> None:
    """Forget the name, and what no other image needs. Sandboxes that run from it go on."""
    images = Cache(cache)
    with images.building(tell):
        images.unname(name)
        sweep(images)


def _manifest(key: str, source: Source, core: Part, root: Part, agent: str) -> manifest.Manifest:
    start = root.about.get("start") or {}
    return manifest.Manifest(
        id=key,
        source=str(source),
        root=root.path.name,
        kernel=core.path.name,
        kernel_release=core.about["release"],
        kernel_form=core.about["form"],
        created=int(time.time()),
        agent=agent,
        packages={**core.about["packages"], **(root.about.get("packages") or {})},
        environment=start.get("environment") or {},
        command=tuple(start.get("command") or ()),
        working_directory=start.get("working_directory") or "",
        user=start.get("user") or "",
    )


def _check_machine() -> None:
    if platform.machine() != "x86_64":
        raise ImageError(
            f"images are made for x86_64, and this machine is {platform.machine()}",
            "use another machine, or the namespace backend, which needs no image",
        )
