"""The file store on real files."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.secrets import SecretMissing, SecretUnavailable
from coatcheck.secrets.file import FileStore
from tests.known_secrets import known_secret

type WriteFile = Callable[..., Path]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    store = FileStore(tmp_path, max_bytes=1000)
    yield store
    await store.close()


def file_ref(name: str, field: str = "value") -> SecretRef:
    mount, _, path = name.partition("/")
    return SecretRef("file", mount, path, field)


async def test_plain_files_are_the_field_value(store: FileStore, write_file: WriteFile) -> None:
    """The whole text without its last line break; other spaces are kept."""
    write_file("agents/openai", f" {known_secret('file')} \r\n")
    assert (await store.fetch(file_ref("agents/openai"))).reveal() == f" {known_secret('file')} "


async def test_json_files_have_fields(store: FileStore, write_file: WriteFile) -> None:
    """A key is a field; an object below it is given as JSON."""
    write_file("agents/all", '{"openai": "sk-1", "aws": {"id": "a"}}')
    assert (await store.fetch(file_ref("agents/all", "openai"))).reveal() == "sk-1"
    assert (await store.fetch(file_ref("agents/all", "aws"))).reveal() == '{"id": "a"}'


async def test_a_changed_file_is_another_version(store: FileStore, write_file: WriteFile) -> None:
    """Each fetch reads the file; the version tells that it changed."""
    write_file("agents/k", "one")
    first = await store.fetch(file_ref("agents/k"))
    os.utime(write_file("agents/k", "two"), ns=(1, 1))
    second = await store.fetch(file_ref("agents/k"))
    assert (first.reveal(), second.reveal(), second.version) == ("one", "two", "1")
    assert first.version != second.version


@pytest.mark.parametrize("name", ["agents/absent", "agents/..", "../etc/passwd", "agents//x", "agents/a\0b"])
async def test_no_such_file_is_missing(name: str, store: FileStore, write_file: WriteFile) -> None:
    """Absent names, and names that are none."""
    write_file("agents/k", "one")
    with pytest.raises(SecretMissing):
        await store.fetch(file_ref(name))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"a": "x"}', "b"),
        ("plain", "b"),
        ("", "value"),
        ('{"a": 5}', "a"),
        ("{broken", "a"),
        ("[" * 900, "a"),
    ],
)
async def test_no_such_field_is_missing(
    text: str, field: str, store: FileStore, write_file: WriteFile
) -> None:
    """A field that is absent, empty or not text."""
    write_file("agents/k", text)
    with pytest.raises(SecretMissing) as caught:
        await store.fetch(file_ref("agents/k", field))
    assert "plain'" not in str(caught.value).replace("a plain file", "")


async def test_open_modes_are_refused(store: FileStore, write_file: WriteFile) -> None:
    """A file that its group or others can read is refused, and the message says chmod 600."""
    for mode in (0o640, 0o604, 0o644, 0o620):
        write_file("agents/k", "one", mode)
        with pytest.raises(SecretUnavailable, match="chmod 600"):
            await store.fetch(file_ref("agents/k"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a file to another user")
async def test_another_users_file_is_refused(store: FileStore, write_file: WriteFile) -> None:
    """Who owns the file can change it, and open it to others."""
    os.chown(write_file("agents/k", "one"), 65534, 65534)
    with pytest.raises(SecretUnavailable, match="another user"):
        await store.fetch(file_ref("agents/k"))


async def test_links_may_not_lead_out(
    store: FileStore, write_file: WriteFile, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Links inside the directory work (Kubernetes mounts secrets so); links out of it are refused."""
    write_file("..data/k", "inside")
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/in").symlink_to("../..data/k")
    assert (await store.fetch(file_ref("agents/in"))).reveal() == "inside"
    outside = tmp_path_factory.mktemp("outside") / "k"
    outside.write_text("outside")
    outside.chmod(0o600)
    (tmp_path / "agents/out").symlink_to(outside)
    (tmp_path / "folder").symlink_to(outside.parent)
    for name in ("agents/out", "folder/k"):
        with pytest.raises(SecretUnavailable, match="leads out"):
            await store.fetch(file_ref(name))


async def test_only_regular_files_of_bounded_size(
    store: FileStore, write_file: WriteFile, tmp_path: Path
) -> None:
    """A FIFO is not waited for, a directory is not read, a large or binary file is refused."""
    (tmp_path / "agents").mkdir()
    os.mkfifo(tmp_path / "agents/fifo", 0o600)
    (tmp_path / "agents/folder").mkdir(0o700)
    write_file("agents/large", "x" * 1001)
    (write_file("agents/binary", "")).write_bytes(b"\xff\xfe\x00")
    for name in ("fifo", "folder", "large", "binary"):
        with pytest.raises(SecretUnavailable) as caught:
            await store.fetch(file_ref(f"agents/{name}"))
        assert caught.value.__context__ is None or isinstance(caught.value.__context__, OSError)
