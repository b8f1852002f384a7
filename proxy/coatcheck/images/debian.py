"""A root from Debian packages, configured by our own hand: no maintainer script runs, so no chroot is needed.

What the scripts would have done is here, file by file, and nothing else of it matters to a sandbox.
"""

import io
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from coatcheck.images import archive, packages
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Node, Tree, directory, link

ESSENTIAL = (
    "base-files", "base-passwd", "bash", "bsdutils", "coreutils", "dash", "debianutils", "diffutils",
    "findutils", "grep", "gzip", "hostname", "libc-bin", "mawk", "ncurses-base", "sed", "sysvinit-utils",
    "tar", "util-linux",
)  # fmt: skip
"""What scripts everywhere take for granted. Debian's own list has the package manager, too, which has no
use here: the root is read-only and there is no way to an archive but through policy."""
DEFAULT = (
    "python3", "curl", "git", "ca-certificates", "bubblewrap", "nftables", "procps", "poppler-utils",
    "xz-utils",
)  # fmt: skip
"""What agents and we ourselves use. poppler-utils reads PDF."""

PROFILES = {
    "python": ("python3-pip", "python3-venv", "python3-dev"),
    "node": ("nodejs", "npm"),
    "compiler": ("gcc", "g++", "libc6-dev", "make", "pkg-config", "patch"),
    # What Playwright, Puppeteer and Chromium itself link against; the browser comes with those.
    "browser": (
        "libasound2", "libatk-bridge2.0-0", "libatk1.0-0", "libatspi2.0-0", "libcairo2", "libcups2",
        "libdbus-1-3", "libdrm2", "libfontconfig1", "libfreetype6", "libgbm1", "libglib2.0-0", "libnspr4",
        "libnss3", "libnss3-tools", "libpango-1.0-0", "libx11-6", "libx11-xcb1", "libxcb1", "libxcomposite1",
        "libxdamage1", "libxext6", "libxfixes3", "libxkbcommon0", "libxrandr2", "libxshmfence1", "fontconfig",
        "fonts-liberation", "fonts-noto-color-emoji",
    ),
}  # fmt: skip
"""What a kind of work needs beyond the default packages. git is one of those."""

MERGED = ("bin", "sbin", "lib", "lib64")
_ALTERNATIVES = {
    "awk": "mawk",
    "pager": "more",
    "which": "which.debianutils",
    "nawk": "mawk",
    "cc": "gcc",
    "c++": "g++",
}
_LEFT_OUT = (
    "usr/share/doc/", "usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/",
    "usr/share/bug/", "usr/share/bash-completion/", "usr/share/gitweb/", "usr/share/doc-base/", "etc/init.d/",
    "etc/systemd/", "lib/systemd/", "usr/lib/systemd/", "etc/cron.daily/", "lib/udev/", "usr/lib/udev/",
    "boot/", "var/cache/", "var/lib/dpkg/",
)  # fmt: skip
"""A third of the files, and nothing that a program needs."""
_CERTIFICATES = "usr/share/ca-certificates/mozilla"
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"


def unpack(archives: Sequence[Path], tree: Tree, spool: Spool, tell: Callable[[str], None]) -> None:
    """Every package's files, into `tree`."""
    for name in MERGED:
        tree.put(f"usr/{name}", directory())
        tree.put(name, link(f"usr/{name}"))
    for number, package in enumerate(archives, start=1):
        if number % 25 == 0:
            tell(f"unpacked {number} of {len(archives)} packages")
        with packages.content(package) as stream:
            try:
                archive.apply(tree, stream, spool, keep_directory_links=True, wanted=_wanted)
            except ImageError as error:
                raise type(error)(f"{package.name}: {error}", error.hint) from error


def _wanted(path: str) -> bool:
    if path.startswith("usr/share/doc/"):
        return path.endswith("/copyright")  # licences ask to stand beside what they license
    return not path.startswith(_LEFT_OUT)


def configure(tree: Tree, spool: Spool) -> None:
    """What the packages' scripts would have written."""
    for name, program in _ALTERNATIVES.items():
        if tree.find(f"usr/bin/{name}") is None and tree.find(f"usr/bin/{program}") is not None:
            tree.put(f"etc/alternatives/{name}", link(f"/usr/bin/{program}"))
            tree.put(f"usr/bin/{name}", link(f"/etc/alternatives/{name}"))
    _copy(tree, "usr/share/base-passwd/passwd.master", "etc/passwd")
    _copy(tree, "usr/share/base-passwd/group.master", "etc/group")
    _copy(tree, "usr/share/libc-bin/nsswitch.conf", "etc/nsswitch.conf")
    _copy(tree, "usr/share/base-files/profile", "etc/profile")
    _copy(tree, "usr/share/base-files/dot.profile", "root/.profile")
    _copy(tree, "usr/share/base-files/dot.bashrc", "root/.bashrc")
    put_file(tree, spool, "etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n")
    put_file(tree, spool, "etc/shells", b"/bin/sh\n/bin/bash\n/usr/bin/bash\n/bin/dash\n")
    put_file(tree, spool, "etc/locale.conf", b"LANG=C.UTF-8\n")
    tree.put("etc/localtime", link("/usr/share/zoneinfo/Etc/UTC"))
    if tree.find("usr/bin/pip3") is not None:
        # pip refuses to install beside Debian's packages (PEP 668). A sandbox's own are gone with it.
        put_file(tree, spool, "etc/pip.conf", b"[global]\nbreak-system-packages = true\n")
    _bundle(tree, spool)


def _copy(tree: Tree, source: str, target: str) -> None:
    node = tree.find(source)
    if node is not None and tree.find(target) is None:
        tree.put(target, node)


def _bundle(tree: Tree, spool: Spool) -> None:
    """The public roots as one file, as update-ca-certificates writes it; the host adds the session's CA."""
    found = tree.find(_CERTIFICATES)
    names = sorted(found.children) if found is not None else []
    pem = (
        b"".join(read(node).strip() + b"\n" for name in names if (node := found.children[name]).is_file)
        if found
        else b""
    )
    if pem:
        put_file(tree, spool, _BUNDLE, pem)


def read(node: Node | None) -> bytes:
    """A file's bytes; empty for one that is not there."""
    return node.content.read_bytes() if node is not None and node.content is not None else b""


def put_file(
    tree: Tree, spool: Spool, path: str, content: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0
) -> None:
    """A new file; what stood there, a link too, is replaced and not written through."""
    held, size = spool.take(io.BytesIO(content))
    tree.put(path, Node(stat.S_IFREG | mode, uid, gid, content=held, size=size))
