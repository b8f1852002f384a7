"""Steps of a guest that belongs to the attacker: its bytes on the channel to the host, archives for images.

No proxy has a part in them: they end as a connection does that is cut; the violated rule, or why an archive
was refused, counts as printed.
"""

import io
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from coatcheck.images.archive import BadArchive, apply
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Tree
from coatcheck.launcher.frames import HEADER_SIZE, Kind, Violation, encode_fields
from coatcheck.launcher.mux import Mux, Side
from tests.corpus.driver import STEPS, Driver
from tests.images.tars import entry, tar

HELLO: Final = {"hello": {"protocol": "2"}}
MAX_BYTES: Final = 1024 * 1024
MAX_ENTRIES: Final = 100
_TYPES: Final = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "block": tarfile.BLKTYPE,
    "character": tarfile.CHRTYPE,
    "pipe": tarfile.FIFOTYPE,
}


async def _guest(driver: Driver, frames: list[Mapping[str, Any]], step: Mapping[str, Any]) -> None:
    """`guest: [frames]`: what it sends, after the HELLO that `greeted: false` leaves out. `host: N` opens N
    streams of ours before. A frame is one of hello, open, data, window, end, reset, note (`stream`, `fields`
    or `bytes`, `flags`), `raw` (hex), or `times` of `frame`, whose streams count up by two."""
    mux = Mux(Side.HOST)
    for _ in range(int(step.get("host", 0))):
        mux.open("exec", [("arg", "true")])
    greeting = [HELLO] if step.get("greeted", True) else []
    driver.outcome.cut = True
    try:
        for frame in (*greeting, *frames):
            for _ in mux.receive(_bytes(frame)):
                pass
        driver.outcome.printed.append("no rule was broken\n")
    except Violation as violation:
        driver.outcome.printed.append(f"violated {violation}\n")


def _bytes(frame: Mapping[str, Any]) -> bytes:
    if "raw" in frame:
        return bytes.fromhex(frame["raw"])
    if "times" in frame:
        again = dict(frame["frame"])
        return b"".join(
            _bytes(again | {"stream": int(again["stream"]) + 2 * number * int(frame.get("counting", 1))})
            for number in range(int(frame["times"]))
        )
    name = next(iter(frame))
    payload = _payload(frame, frame[name])
    length = int(frame.get("length", len(payload)))
    number = int(frame.get("kind", Kind[name.upper()]))
    header = bytes((number, int(frame.get("flags", 0)))) + length.to_bytes(2, "big")
    made = header + int(frame.get("stream", 0)).to_bytes(4, "big")
    assert len(made) == HEADER_SIZE
    return made + payload


def _payload(frame: Mapping[str, Any], said: Any) -> bytes:
    if isinstance(said, Mapping):
        return encode_fields((str(name), str(value)) for name, value in said.items())
    if "size" in frame:
        return bytes(int(frame["size"]))
    return bytes.fromhex(said or "")


async def _archive(driver: Driver, entries: list[Mapping[str, Any]], _: Mapping[str, Any]) -> None:
    """`archive: [entries]`: a tar archive for an image: `name`, `type`, `to`, `bytes` (how many), `uid`."""
    packed = tar(
        *(
            (str(each["name"]), bytes(int(each.get("bytes", 1))))
            if each.get("type", "file") == "file"
            else entry(
                str(each["name"]), _TYPES[each["type"]], str(each.get("to", "")), uid=int(each.get("uid", 0))
            )
            for each in entries
        )
    )
    with tempfile.TemporaryDirectory(prefix="corpus-") as directory:
        spool = Spool(Path(directory) / "spool", max_bytes=MAX_BYTES, max_entries=MAX_ENTRIES)
        try:
            apply(Tree(), io.BytesIO(packed), spool, layer=1, whiteouts=True)
        except (BadArchive, ImageError) as refused:
            driver.outcome.cut = True
            driver.outcome.printed.append(f"refused: {refused}\n")


STEPS["guest"] = _guest
STEPS["archive"] = _archive
