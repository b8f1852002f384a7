"""Files that stores read."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., Path]:
    """`write_file(name, text, mode=0o600)`: a file of that mode."""

    def write(name: str, text: str, mode: int = 0o600) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write
