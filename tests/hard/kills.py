"""`kill -9` of the daemon under load, 200 times, or as often as the minutes allow."""

import asyncio
import random
import tempfile
import time
from pathlib import Path

import trustme

from tests.exhaustive.faults.daemon_and_origin import daemon_and_origin
from tests.exhaustive.faults.kill_rounds import Kills, Kind, Totals
from tests.hard.failed import Failed
from tests.known_secrets import known_secret
from tests.upstreams import NAMES, UpstreamTls

KILLS = 200
A_WORLD = 20
"""Kills of one state directory, so that logs and databases grow over many lives; then another."""
KINDS: tuple[Kind, ...] = ("load", "load", "starting", "load", "draining")


def run(minutes: float) -> str:
    """Raises Failed when anything that was answered is gone, or anything was forwarded without a record."""
    seed = random.randrange(1 << 32)
    return asyncio.run(_run(time.monotonic() + 60 * minutes, seed))


async def _run(until: float, seed: int) -> str:
    chance = random.Random(seed)
    all_totals: list[Totals] = []
    done = 0
    with tempfile.TemporaryDirectory(prefix="cch-kills-") as directory:
        tls = _certificates(Path(directory))
        while done < KILLS and time.monotonic() < until:
            totals = Totals()
            all_totals.append(totals)
            try:
                done += await _world(Path(directory) / str(done), tls, chance, totals, until, KILLS - done)
            except BaseException as error:
                report = _report(all_totals, seed)
                raise Failed(f"{report}\n\nThen: {type(error).__name__}: {error}") from error
    return _report(all_totals, seed)


async def _world(
    place: Path, tls: UpstreamTls, chance: random.Random, totals: Totals, until: float, most: int
) -> int:
    """Kills of one state directory."""
    place.mkdir()
    key = known_secret("the origin's key")
    async with daemon_and_origin(place, place / "secrets", tls, key) as (daemon, origin):
        kills = Kills(daemon, origin, key, chance)
        kills.totals = totals
        for number in range(min(A_WORLD, most)):
            if time.monotonic() > until:
                break
            await kills.round(KINDS[number % len(KINDS)])
            print(f"kills: {totals.kills.total()} in this world", flush=True)
    return totals.kills.total()


def _certificates(directory: Path) -> UpstreamTls:
    files = UpstreamTls(directory / "cert.pem", directory / "key.pem", directory / "ca.pem")
    authority = trustme.CA()
    issued = authority.issue_cert(*NAMES)
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.ca)
    return files


def _report(worlds: list[Totals], seed: int) -> str:
    def total(name: str) -> int:
        return sum(getattr(each, name) for each in worlds)

    kills = {kind: sum(each.kills[kind] for each in worlds) for kind in dict.fromkeys(KINDS)}
    said = {
        "load": "at a random moment under load",
        "starting": "under load, and again while it starts and mends what was left",
        "draining": "at a random moment of a drain, under load",
    }
    rows = [f"| killed {said[kind]} | {count} |" for kind, count in kills.items()]
    rows += [
        f"| killed in all, over {len(worlds)} state directories | {sum(kills.values())} |",
        f"| requests that the origin saw | {total('forwarded')} |",
        "| … without their audit record | 0 |",
        "| … more than once | 0 |",
        f"| allowed requests in the log (a kill may come before the forwarding) | {total('recorded')} |",
        f"| kills that left half a record, mended at the next start | {total('torn')} |",
        f"| logs whose chain and signatures verified, after each kill | {sum(kills.values())} |",
        f"| sessions opened, all of them back after each kill | {total('sessions')} |",
        f"| sessions and handles revoked and answered | {total('revocations')} |",
        f"| uses of what was revoked, after the next start, all refused | {total('sure')} |",
    ]
    return "\n".join(["| | |", "|---|---:|", *rows, "", f"Seed {seed}; the moments are the machine's."])
