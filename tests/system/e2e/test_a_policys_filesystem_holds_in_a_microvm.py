"""`filesystem` of a policy: around each command, inside the guest as in the namespace backend."""

from pathlib import Path

import pytest

from tests.sandboxes import POLICY, image_cache, place, sandbox_in
from tests.upstreams import UpstreamTls

FENCED = POLICY + "filesystem: {allow_write: [/home/agent/out], deny_read: [/usr/share/ca-certificates]}\n"
TRY = """
echo mine > /home/agent/out/file && echo "a place can be written"
echo no > /home/agent/file || echo "home cannot"
ls -A /usr/share/ca-certificates || echo "what is denied cannot be read"
mv /home/agent/out/file /home/agent/ || echo "nor moved there"
"""


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("microvm", marks=pytest.mark.needs_debian("qemu-system-x86_64", "bwrap")),
        pytest.param("namespace", marks=pytest.mark.needs_debian("bwrap", "runc")),
    ],
)
async def test_commands_write_and_read_what_they_may(
    all_output: Path, upstream_tls: UpstreamTls, backend: str
) -> None:
    """A home could be written without it; certificates could be read."""
    async with (
        place(all_output, upstream_tls, FENCED, cache_dir=image_cache()) as where,
        sandbox_in(where, backend=backend) as sandbox,
    ):
        done = await sandbox.run(["sh", "-c", TRY])
        assert done.stdout.decode().splitlines() == [
            "a place can be written",
            "home cannot",
            "what is denied cannot be read",
            "nor moved there",
        ], done.stderr
