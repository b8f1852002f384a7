"""`coatcheck image …`: what a microVM boots, built from Debian packages, a directory or a container image."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coatcheck.cli.control import JsonOption, emit_json
from coatcheck.cli.errors import CommandError, ExitCode
from coatcheck.cli.table import table

if TYPE_CHECKING:
    from coatcheck.images.manifest import Manifest

app = typer.Typer(
    name="image",
    no_args_is_help=True,
    help="Images for microVMs: kernel, initramfs and a read-only root.\n\nExample: coatcheck image build",
)

NameArgument = Annotated[str, typer.Argument(help="Image name or id.")]


@app.command()
def build(
    name: Annotated[str | None, typer.Option(help="Name of the image. Default: `default`.")] = None,
    package: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Additional Debian package. Repeatable.")
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Packages for a kind of work: python, node, compiler, browser (its libraries). Repeatable.",
        ),
    ] = None,
    node: Annotated[
        bool, typer.Option("--node", help="Include Node.js; the same as --package nodejs.")
    ] = False,
    from_dir: Annotated[
        Path | None,
        typer.Option("--from-dir", metavar="DIR", help="Use this directory as the root file system."),
    ] = None,
    from_oci_archive: Annotated[
        Path | None,
        typer.Option(
            "--from-oci-archive", metavar="FILE", help="Use this container image as the root file system."
        ),
    ] = None,
    from_registry: Annotated[
        str | None,
        typer.Option(
            "--from-registry",
            metavar="IMAGE",
            help="Use this container image of a registry, named by its digest: HOST/NAME@sha256:…",
        ),
    ] = None,
    auth_file: Annotated[
        Path | None,
        typer.Option(
            "--auth-file",
            metavar="FILE",
            help="The registry's credentials, as `skopeo login` writes them; mode 0600.",
        ),
    ] = None,
    registry_certs: Annotated[
        Path | None,
        typer.Option(
            "--registry-certs", metavar="DIR", help="Directory with the registry's own CA, as ca.crt."
        ),
    ] = None,
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh",
            help="Look for newer packages. Without this option a build uses those it already has.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Rebuild even if the cache has the image.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build an image. A second build of the same image comes from the cache.

    Needs no root, loop device or mount, and installs nothing. Packages come from this machine's apt sources.
    `docker save IMAGE -o FILE` writes a container image to a file; one in a registry is fetched by skopeo.
    Both are read in namespaces of their own, under limits. COATCHECK_CACHE_DIR says where images are kept. A
    sandbox uses the image named `default` unless it names another.

    Example: coatcheck image build --name work --profile python --profile node
    """
    from coatcheck.images.build import build as make
    from coatcheck.images.cache import DEFAULT
    from coatcheck.images.debian import PROFILES
    from coatcheck.images.parts import Source
    from coatcheck.images.registry import Access, reference
    from coatcheck.settings.explained import load_settings

    unknown = [name for name in profile or () if name not in PROFILES]
    if unknown:
        raise CommandError(
            f"there is no profile {', '.join(unknown)}", f"there are: {', '.join(PROFILES)}", ExitCode.USAGE
        )
    profiles = (name for one in profile or () for name in PROFILES[one])
    packages = (*(package or ()), *profiles, *(("nodejs",) if node else ()))
    if (
        sum((bool(packages), from_dir is not None, from_oci_archive is not None, from_registry is not None))
        > 1
    ):
        raise CommandError(
            "packages and profiles, --from-dir, --from-oci-archive and --from-registry"
            " each say what the root is",
            "give one of them",
            ExitCode.USAGE,
        )
    if from_registry is None and (auth_file, registry_certs) != (None, None):
        raise CommandError(
            "--auth-file and --registry-certs are for --from-registry", "leave them out", ExitCode.USAGE
        )
    source = Source(
        packages,
        _absolute(from_dir),
        _absolute(from_oci_archive),
        None
        if from_registry is None
        else reference(from_registry, Access(_absolute(auth_file), _absolute(registry_certs))),
    )
    if name is None and source != Source():
        raise CommandError(
            "an image that is not the default one needs a name",
            "--name NAME; with --name default, sandboxes use it unless they name another",
            ExitCode.USAGE,
        )
    # As for Ctrl-C: what is half built is removed on the way out.
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    path = make(
        load_settings().cache, name or DEFAULT, source, _Progress(began), refresh=refresh, force=force
    )
    if as_json:
        emit_json({"name": name or DEFAULT, **_document(path)})
    else:
        _show(name or DEFAULT, path)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the images.

    Example: coatcheck image list --json
    """
    from coatcheck.images.cache import Cache
    from coatcheck.images.manifest import sizes
    from coatcheck.settings.explained import load_settings

    images = Cache(load_settings().cache)
    found = [(name, images.find(name)) for name in images.names()]
    if as_json:
        emit_json([{"name": name, **_document(path)} for name, path in found])
        return

    def row(name: str, path: Path) -> tuple[str, ...]:
        manifest = _manifest(path)
        disk = sum(size for _, size in sizes(path).values())
        return name, manifest.id, _mib(disk), _day(manifest.created), manifest.source

    table(
        ("name", "id", "size", "created", "from"),
        (row(name, path) for name, path in found),
        "no images; `coatcheck image build` makes one",
    )


@app.command()
def show(name: NameArgument = "default", as_json: JsonOption = False) -> None:
    """Show an image: its files, its kernel, its packages.

    Example: coatcheck image show default --json
    """
    from coatcheck.images.cache import find
    from coatcheck.settings.explained import load_settings

    path = find(load_settings().cache, name)
    if as_json:
        emit_json({"name": name, **_document(path)})
        return
    _show(name, path)
    for package, version in sorted(_manifest(path).packages.items()):
        typer.echo(f"            {package} {version}")


@app.command()
def rm(name: NameArgument) -> None:
    """Remove an image and the parts that no other image needs. Sandboxes that run from it are not affected.

    Example: coatcheck image rm node
    """
    from coatcheck.images.build import remove
    from coatcheck.settings.explained import load_settings

    remove(load_settings().cache, name, _Progress(time.monotonic()))


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


class _Progress:
    """A line on standard error for each step: a build takes a minute, and a line in a log is of use, too."""

    def __init__(self, began: float) -> None:
        self._began = began

    def __call__(self, what: str) -> None:
        typer.echo(f"image: {time.monotonic() - self._began:5.1f} s  {what}", err=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the way out is not to be interrupted in turn
    sys.exit(128 + signal.SIGTERM)


def _document(path: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from coatcheck.images.manifest import sizes

    files = {name: {"bytes": size, "on_disk": disk} for name, (size, disk) in sizes(path).items()}
    return {"path": str(path), **asdict(_manifest(path)), "files": files}


def _show(name: str, path: Path) -> None:
    from coatcheck.images.manifest import sizes

    manifest = _manifest(path)
    typer.echo(f"image       {name} {manifest.id}, {_day(manifest.created)}, from {manifest.source}")
    typer.echo(f"path        {path}")
    typer.echo(f"kernel      {manifest.kernel_release} ({manifest.kernel_form})")
    for file, (_, disk) in sizes(path).items():
        typer.echo(f"            {file:14} {_mib(disk):>8}")
    if manifest.packages:
        typer.echo(f"packages    {len(manifest.packages)}")


def _manifest(path: Path) -> "Manifest":
    from coatcheck.images.manifest import read

    return read(path)


def _mib(size: int) -> str:
    return f"{size / 1024**2:.1f} MB"


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
