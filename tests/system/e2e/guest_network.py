"""`python guest_network.py METADATA PROXY PROGRAM…`: what a guest's agent does, in a network namespace.

The only network is loopback, with the metadata service's two addresses on it; what connects there goes to the
Unix sockets METADATA and PROXY. Then PROGRAM runs.
"""

import asyncio
import subprocess
import sys


async def main(metadata: str, proxy: str, *program: str) -> int:
    for command in (
        "ip link set lo up",
        "ip address add 169.254.169.254/32 dev lo",
        "ip address add 169.254.170.2/32 dev lo",
    ):
        subprocess.run(command.split(), check=True)
    for address, port, path in (
        ("169.254.169.254", 80, metadata),
        ("169.254.170.2", 80, metadata),
        ("127.0.0.1", 3128, proxy),
    ):
        await asyncio.start_server(forward_to(path), address, port)
    running = await asyncio.create_subprocess_exec(*program)
    return await running.wait()


def forward_to(path: str):  # type: ignore[no-untyped-def]  # a program of its own
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(carry(reader, inner_writer), carry(inner_reader, writer))

    return forward


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
