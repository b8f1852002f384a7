"""The CA that certs/README.md makes with OpenSSL and certs/ca.cnf, by the document's own command."""

import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "certs"


def made_with_openssl(directory: Path, configuration: Path = FOLDER / "ca.cnf") -> Path:
    """`directory`, made 0700 as the daemon wants its own, with ca.pem and ca-key.pem."""
    (command,) = re.findall(r"```sh\n(openssl req .*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    directory.mkdir(mode=0o700, parents=True)
    command = command.replace("certs/ca.cnf", str(configuration))
    subprocess.run(["sh", "-ec", command], cwd=directory, check=True, capture_output=True, timeout=60)
    return directory
