"""What a pod's workload reads: whom to trust, its handles, and a program that starts others with them.

A container's environment is fixed before its pod has a session, so that handles come in files: one each, all
of them as shell, and `with-handles`, to put before a command.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from coatcheck.certificates.client_environment import trust_environment
from coatcheck.certificates.trust import TrustFiles, write_trust_files
from coatcheck.platform.private_files import write_atomically

ENVIRONMENT = "environment"
"""`export NAME='value'` lines. The last that is written: where it is, everything is."""
WITH_HANDLES = "with-handles"
HANDLES = "handles"

_PROGRAM = """\
#!/bin/sh
# Starts a program with this pod's handles in its environment.
. {environment} && exec "$@"
"""
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def write_workload_files(directory: Path, ca_pem: bytes, handles: Mapping[str, str]) -> TrustFiles:
    """Write all of them into `directory`, readable by everybody in the pod, in place of older ones.

    `handles`: variable -> value. OSError or CertificateError when the directory cannot be written to.
    """
    files = write_trust_files(directory, ca_pem)
    variables = {name: value for name, value in handles.items() if _VARIABLE.fullmatch(name)}
    place = directory / HANDLES
    place.mkdir(exist_ok=True)
    place.chmod(0o755)
    for old in {each.name for each in place.iterdir()} - variables.keys():
        (place / old).unlink()
    for name, value in variables.items():
        write_atomically(place / name, value.encode(), mode=0o644, overwrite=True)
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in (variables | trust_environment(files)).items()
    ]
    environment = directory / ENVIRONMENT
    program = _PROGRAM.format(environment=shlex.quote(str(environment)))
    write_atomically(directory / WITH_HANDLES, program.encode(), mode=0o755, overwrite=True)
    write_atomically(environment, "".join(lines).encode(), mode=0o644, overwrite=True)
    return files
