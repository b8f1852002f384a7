"""One command makes a sandbox's image of one in a registry: by its digest, over verified TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.images import manifest
from coatcheck.images.build import build
from coatcheck.images.cache import Cache
from coatcheck.images.parts import Source
from coatcheck.images.problem import ImageError
from coatcheck.images.registry import Access, Reference, reference
from coatcheck.platform.private_files import PrivateFileError
from tests.cli.transcript import coatcheck
from tests.images import filesystem
from tests.images.registry import Registry, running
from tests.images.tars import entry, saved, tar

pytestmark = pytest.mark.needs_debian("mke2fs", "cc", "skopeo", "docker-registry", "bwrap")

LAYERS = (tar(entry("bin"), ("bin/sh", b"shell"), ("bin/old", b"x")), tar(("bin/.wh.old", b"")))
CONFIG = {"Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "/srv", "User": "1000"}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with running(tmp_path / "registry") as one:
        yield one


@pytest.fixture
def pushed(registry: Registry, tmp_path: Path) -> Reference:
    return registry.push(saved(tmp_path / "image.tar", LAYERS, CONFIG), "team/agent")


def silent(_line: str) -> None:
    pass


def refused(cache: Path, source: Reference, words: str) -> None:
    """With a hint, and nothing of it left."""
    with pytest.raises(ImageError, match=words) as raised:
        build(cache, "mine", Source(image=source), silent)
    assert raised.value.hint
    images = Cache(cache)
    assert (images.names(), images.keys("roots")) == ({}, set())
    assert not list(images.where.rglob("*unfinished*"))


def test_one_command_makes_an_image_of_it(
    cache: Path, registry: Registry, pushed: Reference, tmp_path: Path
) -> None:
    """Its layers over each other, and how it is started. Again, it comes from the cache, by its digest."""
    words = [
        *("image", "build", "--name", "mine", "--from-registry", f"docker://{pushed.name}@{pushed.digest}"),
        *("--auth-file", "registry/auth.json", "--registry-certs", "registry/certs"),
    ]
    said = coatcheck(*words, cwd=tmp_path, env={"COATCHECK_CACHE_DIR": str(cache)})
    assert said.code == 0, said.err
    image = Cache(cache).find("mine")
    about = manifest.read(image)
    assert (dict(about.environment), about.command, about.user) == ({"PATH": "/bin"}, ("sh",), "1000")
    assert about.source == str(pushed)
    disk = image / "root.ext4"
    filesystem.check(disk)
    assert filesystem.content(disk, "/bin/sh") == b"shell"
    assert filesystem.look(disk, "/bin/old") is None
    registry.stop()
    assert build(cache, "again", Source(image=pushed), silent) == image


def test_a_tag_is_refused_and_its_digest_told(pushed: Reference) -> None:
    """It can mean another image tomorrow. Without a tag, `latest` is meant, as everywhere."""
    for text in (f"{pushed.name}:latest", pushed.name):
        with pytest.raises(ImageError, match="`latest` is a tag of") as raised:
            reference(text, pushed.access)
        assert f"now it is {pushed.name}@{pushed.digest}" in raised.value.hint
    assert reference(f"{pushed.name}@{pushed.digest}", pushed.access) == pushed


def test_a_certificate_of_an_unknown_ca_is_refused(
    cache: Path, registry: Registry, pushed: Reference
) -> None:
    """Whoever stands between could give an old image, and would see the password."""
    unknown = Access(registry.access.auth_file)
    refused(cache, Reference(pushed.name, pushed.digest, unknown), "certificate")


def test_a_password_is_taken_from_a_private_file_alone(
    cache: Path, registry: Registry, pushed: Reference
) -> None:
    """Not from the home directory of who builds: nobody hands a registry a password by accident."""
    nobody = Access(certificates=registry.access.certificates)
    refused(
        cache,
        Reference(pushed.name, pushed.digest, nobody),
        "cannot be fetched: .*(unauthorized|authentication)",
    )
    (registry.place / "auth.json").chmod(0o644)
    with pytest.raises(PrivateFileError, match="is open to other users"):
        build(cache, "mine", Source(image=pushed), silent)


def test_what_is_not_the_digests_is_refused(cache: Path, registry: Registry, pushed: Reference) -> None:
    """A registry that was broken into gives another layer under the same name; or it has none."""
    refused(cache, Reference(pushed.name, f"sha256:{'0' * 64}", pushed.access), "manifest unknown")
    largest = registry.blobs()[0]
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    refused(cache, pushed, "cannot be fetched")


def test_a_hostile_image_is_refused_as_an_archive_is(cache: Path, registry: Registry, tmp_path: Path) -> None:
    """The way that it came by makes it no better."""
    layer = tar(entry("bin"), ("bin/sh", b""), ("../outside", b"x"))
    refused(cache, registry.push(saved(tmp_path / "bad.tar", [layer]), "bad"), "climbs out of its directory")


@pytest.mark.parametrize(
    "text",
    [
        *("", "docker://", "--authfile=/etc/shadow", "a b", "UPPER/case@sha256:" + "0" * 64, "x@sha256:12"),
        *(
            "x@md5:12",
            "x/../y@sha256:" + "0" * 64,
            "dir:/etc",
            "oci:/etc:x",
            "x:a/b",
            "/etc@sha256:" + "0" * 64,
        ),
    ],
)
def test_what_names_no_image_is_refused_before_anything_runs(text: str) -> None:
    """skopeo would take an option, or one of its other places, such as a directory."""
    with pytest.raises(ImageError, match="is not an image in a registry"):
        reference(text, Access())


def test_a_tag_beside_a_digest_is_refused() -> None:
    """One of the two would not count."""
    with pytest.raises(ImageError, match="has a tag and a digest") as raised:
        reference(f"host.example:5000/x:1@sha256:{'0' * 64}", Access())
    assert "host.example:5000/x@sha256:00" in raised.value.hint


def test_without_skopeo_the_package_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that never fetched one."""
    monkeypatch.setattr("coatcheck.images.programs._SEARCH", "/nowhere")
    with pytest.raises(ImageError, match="skopeo is not installed") as raised:
        reference("host.example/x:1", Access())
    assert raised.value.hint == "apt-get install skopeo"
