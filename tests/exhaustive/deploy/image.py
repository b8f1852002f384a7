"""Builds the image without an engine: Debian's buildah, a base by debootstrap, wheels that pip fetched.

What costs minutes is kept in the user's cache directory, beside microVMs' images: the base, the wheels, and
buildah's layers, which hold until the Dockerfile or a lock changes. One build at a time on a machine.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coatcheck.settings.daemon import Settings

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy/image/Dockerfile"
LOCKS = (DOCKERFILE.with_name("requirements.lock"), DOCKERFILE.with_name("build.lock"))
BASE, IMAGE = "localhost/base", "localhost/coatcheck"
SUITE = "trixie"
SECONDS = 1800.0
"""For one step of a first build on a busy machine; it takes about two minutes on an idle one."""
PIP = "[global]\nno-index = true\nfind-links = /mnt\n"
"""Of the build: nothing but the wheels, which the test mounts."""
CONTAINED = (
    "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--as-pid-1", "--clearenv",
)  # fmt: skip
"""What every container has to itself, in bubblewrap's words."""


class BuildFailed(Exception):
    """A program of the build failed; its own last words."""


def run(*words: str | Path, env: Mapping[str, str] | None = None) -> str:
    ran = subprocess.run(
        [*map(str, words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, env=env,
    )  # fmt: skip
    if ran.returncode:
        raise BuildFailed(f"{words[0]} {words[1:3]}: {(ran.stdout + ran.stderr)[-4000:]}")
    return ran.stdout


@dataclass(frozen=True, slots=True)
class Builder:
    home: Path
    runtime: Path
    """Of this process: which layers are mounted."""
    driver: str

    def buildah(self, *words: str | Path) -> str:
        store = ("--root", self.home / "layers", "--runroot", self.runtime, "--storage-driver", self.driver)
        # Unqualified names must not be looked for anywhere: what is not here is an error.
        return run(
            "buildah", *store, *words, env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": "/root"}
        )

    def build(self, *words: str | Path, pinned: bool = True, target: str = "image") -> str:
        """The id of what `target` of the Dockerfile gives, from the base by its digest."""
        base = [f"--build-arg=BASE={BASE}", *([f"--build-arg=BASE_DIGEST={self.digest}"] if pinned else [])]
        said = self.buildah(
            "bud", "--isolation=chroot", "--layers", "--pull-never", "--quiet", f"--file={DOCKERFILE}", *base,
            "--force-rm",  # also when it fails, as one is meant to
            f"--secret=id=pip,src={self.home / 'pip.conf'}", f"--volume={self.home / 'wheels'}:/mnt:ro",
            f"--target={target}", *words, ROOT,
        )  # fmt: skip
        return said.strip().rpartition("\n")[2]

    @property
    def digest(self) -> str:
        return self.buildah("inspect", "--type=image", "--format={{.FromImageDigest}}", BASE).strip()

    def images(self) -> set[str]:
        return set(self.buildah("images", "--all", "--quiet", "--no-trunc").split())

    def prepare(self) -> None:
        """The base, the wheels and an empty store, unless they are there already."""
        inputs = [DOCKERFILE, *LOCKS]
        key = hashlib.sha256(b"\0".join(each.read_bytes() for each in inputs)).hexdigest()
        known = self.home / "key"
        if known.exists() and known.read_text() == key:
            return
        for stale in ("layers", "wheels"):
            shutil.rmtree(self.home / stale, ignore_errors=True)
        known.unlink(missing_ok=True)
        (self.home / "pip.conf").write_text(PIP)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
        for lock in LOCKS:
            run(*pip, "--require-hashes", f"--dest={self.home / 'wheels'}", f"--requirement={lock}")
        self._base()
        known.write_text(key)

    def _base(self) -> None:
        archive = self.home / f"{SUITE}.tar"
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=self.home) as text:
                root = Path(text) / "root"
                path = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
                run("debootstrap", "--variant=minbase", SUITE, root, mirror(), env=path)
                # As in a registry's image: no device nodes, no packages that were installed from.
                run("tar", "--create", "--file", archive.with_suffix(".new"), "--directory", root,
                    "--exclude=./dev/*", "--exclude=./var/cache/apt/archives/*.deb", ".")  # fmt: skip
            archive.with_suffix(".new").rename(archive)
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "--quiet", container, archive)
        self.buildah("commit", "--quiet", "--rm", container, BASE)


def mirror() -> str:
    """Where this machine's apt gets Debian from."""
    form = "$(REPO_URI) $(LABEL) $(CREATED_BY)"
    words = ("apt-get", "indextargets", f"--format={form}")
    if not (said := run(*words)):
        run("apt-get", "update", "-qq")
        said = run(*words)
    found = [line.split()[0] for line in said.splitlines() if line.endswith(" Debian Packages")]
    assert found, "apt has no list of Debian's packages: apt-get update"
    return found[0]


def storage_driver(home: Path) -> str:
    """overlay, or where the machine's own root is one (in a container), vfs: slower, and larger."""
    with tempfile.TemporaryDirectory(dir=home) as text:
        store = ("--root", f"{text}/layers", "--runroot", f"{text}/run", "--storage-driver", "overlay")
        try:
            run("buildah", *store, "info")
        except BuildFailed:
            return "vfs"
        return "overlay"


@dataclass(frozen=True, slots=True)
class Image:
    builder: Builder = field(repr=False)
    name: str
    root: Path
    """Mounted, with a writable layer of its own, in which a runtime makes the places of its mounts."""
    configuration: Mapping[str, Any]
    size: int
    """Bytes of its layers."""

    def command(self, *words: str, user: str = "", mounts: Mapping[str, Path] | None = None,
                env: Mapping[str, str] | None = None, network: bool = True) -> list[str]:  # fmt: skip
        """What runs `words` in it, with a read-only root and no capability; by default as its own user."""
        number, _, group = (user or self.configuration["User"]).partition(":")
        environment = {**dict(each.split("=", 1) for each in self.configuration["Env"]), **(env or {})}
        bound = ["--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev"]
        bound += ["--perms", "1777", "--tmpfs", "/tmp"]
        for place, source in (mounts or {}).items():
            inside = resolved(self.root, place)
            (self.root / inside).mkdir(parents=True, exist_ok=True)
            bound += ["--bind", str(source), f"/{inside}"]
        set_ = [word for pair in environment.items() for word in ("--setenv", *pair)]
        alone = [*CONTAINED] if network else [*CONTAINED, "--unshare-net"]
        who = ["--reuid", number, "--regid", group or number, "--clear-groups", "--no-new-privs"]
        powers = ["--bounding-set=-all", "--inh-caps=-all"]
        return ["bwrap", *alone, *set_, *bound, "--", "setpriv", *who, *powers, "--", *words]

    def run(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, **more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )


def resolved(root: Path, place: str) -> Path:
    """`place` without its `/`, behind the image's own links, which must not lead out of it (/var/run)."""
    found = Path()
    for part in Path(place).parts[1:]:
        found /= part
        if (link := root / found).is_symlink():
            target = os.path.normpath(Path("/") / found.parent / link.readlink())
            found = resolved(root, target)
    return found


@contextmanager
def builder() -> Iterator[Builder]:
    """Ready to build; nobody else on this machine builds with its store meanwhile."""
    home = Settings().cache / "image-tests"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock, tempfile.TemporaryDirectory(prefix="cct-") as runtime:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Builder(home, Path(runtime), storage_driver(home))
        made.prepare()
        yield made


@contextmanager
def built(with_: Builder) -> Iterator[Image]:
    """The image of this checkout. What is its own is removed afterwards: the store does not grow."""
    # Built for themselves first, so that all that comes after them is this checkout's.
    for stage in ("dependencies", "runtime"):
        with_.build(f"--tag={IMAGE}-{stage}", target=stage)  # a name: `rmi` takes nameless parents along
    shared = with_.images()
    name = with_.build(f"--tag={IMAGE}")
    container = with_.buildah("from", "--pull-never", name).strip()
    try:
        inspected = json.loads(with_.buildah("inspect", "--type=image", name))
        root = Path(with_.buildah("mount", container).strip())
        size = sum(file.lstat().st_size for file in root.rglob("*") if not file.is_dir())
        yield Image(with_, name, root, inspected["OCIv1"]["config"], size)
    finally:
        with_.buildah("rm", container)
        if own := with_.images() - shared:
            with_.buildah("rmi", "--force", *sorted(own))
