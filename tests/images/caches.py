"""A cache of a test's own, with the kernel and the guest's programs of the user's."""

import shutil
from pathlib import Path

from coatcheck.images import guest_programs
from coatcheck.images.build import INIT_SOURCE
from coatcheck.images.cache import Cache
from coatcheck.images.parts import Parts
from coatcheck.settings.daemon import Settings


def users_kernel() -> Path:
    """Debian's kernel, made ready: what `make setup` left in the user's cache."""
    cache = Settings().cache
    # Compiled there if the source has changed since, and not once for each test's own cache.
    guest_programs.agent(cache / "guest")
    guest_programs.program("init", [INIT_SOURCE], cache / "guest")
    images = Cache(cache)
    with images.building(print):
        return Parts(cache, images, print, refresh=False, force=False).kernel().path


def own_cache(ours: Path) -> Path:
    """A cache that needs no network: its kernel and its guest programs are there, and it has no images."""
    users, images, kernel = Settings().cache, Cache(ours), users_kernel()
    for directory in ("kernels", "recipes"):
        (images.where / directory).mkdir(mode=0o700)
    shutil.copytree(kernel, images.where / "kernels" / kernel.name)
    for recipe in (users / "images/recipes").glob("kernels-*"):
        shutil.copy(recipe, images.where / "recipes")
    shutil.copytree(users / "guest", ours / "guest")
    (ours / "guest").chmod(0o700)
    return ours
