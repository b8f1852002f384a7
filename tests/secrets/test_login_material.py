"""Files that hold what proves the daemon to a server."""

import os
from pathlib import Path

import pytest

from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.login_material import read_material


@pytest.mark.parametrize("content", ["", "  \n", "two\nlines", "ümlaut", "x" * 70_000, "nul\0"])
def test_login_material_must_be_one_line_of_text(content: str, tmp_path: Path) -> None:
    """Empty, torn, binary and oversized files are refused by name, without a word of their content."""
    file = tmp_path / "material"
    file.write_text(content)
    with pytest.raises(SecretUnavailable, match="must hold one line") as caught:
        read_material(file)
    assert "two" not in str(caught.value).replace(str(file), "")


def test_login_material_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A missing file, a directory, a FIFO nobody writes to: refused at once, never waited for."""
    os.mkfifo(tmp_path / "fifo")
    for name in ("missing", ".", "fifo"):
        with pytest.raises(SecretUnavailable, match="login file"):
            read_material(tmp_path / name)
