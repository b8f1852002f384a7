"""A cache of a test's own that has the user's kernel, and a small root."""

from pathlib import Path

import pytest

from tests.images.caches import own_cache


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return own_cache(tmp_path / "cache")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that could be somebody's root."""
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "bin").symlink_to("usr/bin")
    (root / "usr/bin/program").write_bytes(b"#!/bin/sh\n" * 5000)
    (root / "usr/bin/program").chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nagent:x:7:7::/:/bin/false\n")
    (root / "etc/empty").touch()
    return root
