"""An image in a registry becomes an archive here: skopeo fetches it, confined, by its digest.

A tag means something else tomorrow, so none is taken: who gives one is told what it means now.
"""

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coatcheck.images import confined
from coatcheck.images.problem import ImageError
from coatcheck.images.programs import find
from coatcheck.images.spool import MAX_BYTES
from coatcheck.platform.private_files import read_private

LIMITS = confined.Limits(seconds=3600, memory=8 * 1024**3, disk=2 * MAX_BYTES + 1024**3, files=1024)
"""Go reserves gigabytes of addresses that it does not use; layers are fetched, and then put into one file."""
_SCHEME = "docker://"
_NAME = re.compile(
    r"[a-z0-9][a-z0-9.-]*(?::[0-9]+)?/(?:[a-z0-9][a-z0-9._-]*/)*[a-z0-9][a-z0-9._-]*|[a-z0-9][a-z0-9._-]*"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ARCHIVE = "image.tar"
_AUTH = Path("/coatcheck-auth.json")
_CERTIFICATES = Path("/coatcheck-certificates")
_PLATFORM = ("--override-os", "linux", "--override-arch", "amd64")
_REASON = re.compile(r'level=(?:fatal|error) msg="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Access:
    """What a registry that is not public needs."""

    auth_file: Path | None = None
    """Its credentials, as `docker login` and `skopeo login` write them."""
    certificates: Path | None = None
    """A directory with its CA (`ca.crt`), or a client's certificate, as in /etc/containers/certs.d."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a registry."""

    name: str
    """`registry.example.org/team/agent`; without a registry it is Docker's own."""
    digest: str
    access: Access = Access()

    def __str__(self) -> str:
        return f"{_SCHEME}{self.name}@{self.digest}"


def reference(text: str, access: Access) -> Reference:
    """What `text` names. ImageError for a tag, with the digest that it has now."""
    name, _, digest = text.removeprefix(_SCHEME).partition("@")
    host, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    bare = host + slash + last
    if (
        not _NAME.fullmatch(bare)
        or (digest and not _DIGEST.fullmatch(digest))
        or (colon and not _TAG.fullmatch(tag))
    ):
        raise ImageError(
            f"{text!r} is not an image in a registry", "write it as registry.example.org/team/agent@sha256:…"
        )
    if digest and colon:
        raise ImageError(f"{text!r} has a tag and a digest", f"leave the tag out: {bare}@{digest}")
    if digest:
        return Reference(bare, digest, access)
    tag = tag or "latest"
    raise ImageError(
        f"`{tag}` is a tag of {bare}, and can mean another image tomorrow",
        f"name the image by its digest; now it is {bare}@{_digest_of(f'{_SCHEME}{bare}:{tag}', access)}",
    )


def fetch(source: Reference, work: Path, tell: Callable[[str], None]) -> Path:
    """The image as an archive in `work`. Its digest was checked, and so was each layer's. ImageError."""
    tell(f"fetching {source.name}")
    to = f"oci-archive:{confined.WORK / _ARCHIVE}"
    _skopeo("copy", ["--quiet"], "src-", [str(source), to], source.access, work, lambda _line: None)
    return work / _ARCHIVE


def _digest_of(name: str, access: Access) -> str:
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="coatcheck-") as work:
        options = ["--no-tags", "--format", "{{.Digest}}"]
        _skopeo("inspect", options, "", [name], access, Path(work), lines.append)
    return lines[-1] if lines and _DIGEST.fullmatch(lines[-1]) else "sha256:…"


def _skopeo(
    what: str,
    options: Sequence[str],
    prefix: str,
    names: Sequence[str],
    access: Access,
    work: Path,
    line: Callable[[str], None],
) -> None:
    """`prefix`: of the options that say how the registry is reached."""
    words = [what, *options, f"--{prefix}tls-verify=true"]
    shown = []
    if access.auth_file is None:
        words.append(f"--{prefix}no-creds")
    else:
        read_private(access.auth_file)  # refused when others can read it
        shown.append((access.auth_file, _AUTH))
        words += [f"--{prefix}authfile", str(_AUTH)]
    if access.certificates is not None:
        if not access.certificates.is_dir():
            raise ImageError(
                f"{access.certificates} is not a directory", "its file ca.crt holds the registry's CA"
            )
        shown.append((access.certificates, _CERTIFICATES))
        words += [f"--{prefix}cert-dir", str(_CERTIFICATES)]
    # The machine's own rules on signatures hold where there are any. The digest pins what is taken.
    policy = [] if Path("/etc/containers/policy.json").is_file() else ["--insecure-policy"]
    command = [find("skopeo"), *policy, *_PLATFORM, "--tmpdir", str(confined.WORK), *words, *names]
    try:
        confined.run(command, work, LIMITS, shown=shown, network=True, line=line)
    except confined.Ended as error:
        reason = _REASON.search(error.said)
        if reason is None:
            raise
        raise ImageError(
            f"the image cannot be fetched: {reason[1]}",
            "check its name and digest, --auth-file and --registry-certs; proxies come from the environment",
        ) from error
