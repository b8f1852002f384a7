"""`coatcheck sidecar`: the daemon of one pod and the pod's session, which lives as long as the pod's token.

In Kubernetes, who the pod is comes from the proxy container's projected token, which the workload has no way
to read: its signature, audience and pod are looked at before the session is opened and before each renewal.
Podman and docker compose sign no tokens: there the operator who starts the pod names tenant and subject. What
the workload needs (trust, handles) is written into a directory that it can read and nobody but us can write.
"""

import asyncio
import json
import logging
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coatcheck.certificates.trust import CA_FILE
from coatcheck.client.control import ControlClient, ControlError
from coatcheck.kubernetes.workload_files import ENVIRONMENT, write_workload_files
from coatcheck.local.in_process import own_daemon
from coatcheck.local.run import OVER
from coatcheck.planes.configured import platform_tokens
from coatcheck.planes.origins.platform_token import PlatformTokens, TokenProof
from coatcheck.platform.child_process import RENEWALS_A_LEASE
from coatcheck.platform.errors import CoatcheckError
from coatcheck.platform.private_files import PrivateFileError, read_private, write_atomically
from coatcheck.secrets import SecretUnavailable
from coatcheck.secrets.login_material import read_material
from coatcheck.settings.daemon import Settings

logger = logging.getLogger(__name__)

RECORD = "pod-session.json"
"""In the state directory: which session is the pod's. A container that is started again goes on with it: the
workload's processes keep the handles that they hold."""
FINAL = frozenset({"revoked"})
"""A restart of the container does not undo a decision; a session that lapsed is opened again."""
LATER = frozenset({"not_durable", "origin_taken"})
"""What passes: a fleet's shared state that was not read yet, or the session of a pod that had this address
and died without a word, until its lease lapses."""
OPENING_SECONDS = 60.0
"""For that. Half of what the chart's startup probe grants; then the kubelet starts the container again."""
ASKING_SECONDS = 1.0
"""Between two times that it is tried."""


@dataclass(frozen=True, slots=True)
class PodToken:
    """What proves the pod."""

    file: Path
    """The projected token; the kubelet replaces it before it expires."""
    uid: str
    """The pod's, which the token must name."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose the session is."""

    tenant: str
    subject: str


@dataclass(frozen=True, slots=True)
class Pod:
    """What the pod's specification tells the proxy's container."""

    owner: PodToken | Owner
    """Named by the token, or by the operator where nobody signs tokens."""
    address: str
    """Which redirected connections come from."""
    policy: str
    workload: Path
    """Where the workload looks for what it needs: a volume that it cannot write to."""


class SidecarError(CoatcheckError):
    """There is no session to be had for this pod. `hint` says what to do."""


async def serve_pod(settings: Settings, pod: Pod) -> None:
    """The daemon and the pod's session, until SIGTERM or SIGINT; then the session is ended.

    Raises SidecarError, ControlError, and what `own_daemon` and `platform_tokens` raise. A session that is
    revoked stays so: the daemon goes on, and refuses.
    """
    tokens = platform_tokens(settings)
    if tokens is not None:
        await tokens.source.read()
    owner = owner_of(pod, tokens, time.time())
    async with own_daemon(settings) as serving:
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.set)
        client = ControlClient(settings.control)
        session, lease = await _opened(client, settings, pod, owner, ending)
        logger.info("session %s of %s in %s: the workload may begin", session, owner.subject, owner.tenant)
        keeping = asyncio.create_task(_keep(client, tokens, pod, session, lease), name="pod session")
        stopping = asyncio.create_task(ending.wait())
        following = asyncio.create_task(_follow(tokens), name="platform keys")
        try:
            await asyncio.wait((serving, stopping, keeping), return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()  # what it raises ends us, and the kubelet starts us again
                await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            beside = (keeping, stopping, following)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if ending.is_set():
                with suppress(ControlError):  # its lease lapses anyway
                    await asyncio.to_thread(client.end, session)


async def _opened(
    client: ControlClient, settings: Settings, pod: Pod, owner: Owner, ending: asyncio.Event
) -> tuple[str, float]:
    """`session_of` as soon as it can be had; its ControlError when that takes too long, or the pod ends."""
    until = time.monotonic() + OPENING_SECONDS
    while True:
        try:
            return await asyncio.to_thread(session_of, client, settings, pod, owner)
        except ControlError as error:
            if error.reason not in LATER or ending.is_set() or time.monotonic() > until:
                raise
            logger.warning("the pod's session cannot be opened yet: %s", error)
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), ASKING_SECONDS)


async def _follow(tokens: PlatformTokens | None) -> None:
    if tokens is not None:
        await tokens.source.follow()


def owner_of(pod: Pod, tokens: PlatformTokens | None, now: float) -> Owner:
    """Whose the session is at `now` (Unix seconds). SidecarError: the token does not prove this very pod."""
    if isinstance(pod.owner, Owner):
        return pod.owner
    if tokens is None:
        raise SidecarError(
            "no issuer is set, so no token can be trusted",
            "set COATCHECK_TOKEN_JWKS_URL or COATCHECK_TOKEN_JWKS_FILE, COATCHECK_TOKEN_ISSUER and"
            " COATCHECK_TOKEN_AUDIENCE",
        )
    proof = _prove(tokens, pod.owner, now)
    return Owner(proof.namespace, f"pod/{proof.pod}")


def _prove(tokens: PlatformTokens, shown: PodToken, now: float) -> TokenProof:
    try:
        token = read_material(shown.file)
    except SecretUnavailable as error:
        raise SidecarError(
            str(error).replace("Vault login", "pod's token"), "is the projected volume mounted?"
        ) from None
    proof = tokens.proof(token, now)
    if proof is None:
        raise SidecarError(
            f"the token in {shown.file} proves nothing",
            "it must be signed by a key that the platform publishes, name COATCHECK_TOKEN_ISSUER and only "
            "COATCHECK_TOKEN_AUDIENCE, and not have expired",
        )
    if proof.origin.value.rpartition("|")[2] != shown.uid or not proof.namespace or not proof.pod:
        raise SidecarError(
            f"the token in {shown.file} is another pod's", "it must be projected into this very pod"
        )
    return proof


def session_of(client: ControlClient, settings: Settings, pod: Pod, owner: Owner) -> tuple[str, float]:
    """The pod's session, the one of before where it lives: its id and its lease in seconds. Blocking.

    Raises SidecarError for a session that was revoked, and ControlError.
    """
    record = settings.state_dir / RECORD
    origin = {"class": "address", "value": f"transparent|{pod.address}"}
    known = _known(record)
    if known is not None:
        with suppress(ControlError):
            shown = client.show(known)["session"]
            if shown["status"] in FINAL:
                raise SidecarError(
                    f"the pod's session {known} was revoked", "if that was a mistake, delete the pod"
                )
            # After a node's restart the pod has another address, and by the old one nobody would be known.
            if (
                shown["status"] == "live"
                and shown["origin"] == origin
                and pod.workload.joinpath(ENVIRONMENT).exists()
            ):
                return known, float(shown["lease_seconds"])
    opened = client.open_session(
        tenant=owner.tenant,
        subject=owner.subject,
        policy=pod.policy,
        isolation="namespace",
        origin=origin,
    )
    session = opened["session"]
    write_atomically(record, json.dumps({"session": session["id"]}).encode(), overwrite=True)
    authority = (settings.runtime / "trust" / CA_FILE).read_bytes()
    write_workload_files(pod.workload, authority, _handles(opened))
    return str(session["id"]), float(session["lease_seconds"])


def _handles(opened: Mapping[str, Any]) -> dict[str, str]:
    """The variables in which clients look for the session's handles."""
    found: dict[str, str] = {}
    for handle in opened["handles"].values():
        found |= handle["environment"]
    return found


def _known(record: Path) -> str | None:
    try:
        found = json.loads(read_private(record))
    except (PrivateFileError, ValueError):
        return None
    session = found.get("session") if isinstance(found, dict) else None
    return session if isinstance(session, str) else None


async def _keep(
    client: ControlClient, tokens: PlatformTokens | None, pod: Pod, session: str, lease: float
) -> None:
    """Renew while the pod is who it was. Returns once the session is over for good; SidecarError when the
    token proves nothing for a whole lease, ControlError when the daemon does not answer for one."""
    until = time.monotonic() + lease
    while True:
        await asyncio.sleep(lease / RENEWALS_A_LEASE)
        asked = time.monotonic()
        try:
            owner_of(pod, tokens, time.time())
            await asyncio.to_thread(client.renew, session)
        except (SidecarError, ControlError) as error:
            if isinstance(error, ControlError) and error.reason in OVER:
                logger.warning("the pod's session is over, and everything from it is refused: %s", error)
                return
            if asked > until:
                raise
        else:
            until = asked + lease
