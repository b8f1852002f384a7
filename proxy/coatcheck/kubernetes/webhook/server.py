"""The webhook as a server: HTTPS for the API server, which asks /mutate and /validate."""

import asyncio
import contextlib
import datetime
import json
import logging
import signal
from pathlib import Path
from typing import Any

from aiohttp import web

from coatcheck.kubernetes.webhook.certificate import ServingCertificate
from coatcheck.kubernetes.webhook.configuration import Admission, AdmissionConfigurationError, load
from coatcheck.kubernetes.webhook.review import ReviewError, mutate, validate

logger = logging.getLogger(__name__)

MAX_REVIEW = 8 * 1024 * 1024
"""Bytes. The API server takes objects of 3 MiB at most (etcd's limit is 1.5), and an update carries two."""
REFRESH_SECONDS = 60.0
"""How soon a CA that was replaced counts: a mounted Secret takes about as long itself."""
JUDGES = {"/mutate": mutate, "/validate": validate}


class Webhook:
    """The two judges behind HTTP. Without a state: replicas need nothing of each other."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.application = web.Application(client_max_size=MAX_REVIEW)
        self.application.router.add_get("/healthz", self._alive)
        for path in JUDGES:
            self.application.router.add_post(path, self._judge)

    async def _alive(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _judge(self, request: web.Request) -> web.Response:
        """What cannot be judged is answered by an error, which the API server takes for a refusal (Fail)."""
        try:
            review: Any = json.loads(await request.read())
            if not isinstance(review, dict):
                raise ReviewError("the body is not a JSON object")
            answer = JUDGES[request.path](review, self._admission)
        except ReviewError as error:
            return web.json_response({"error": str(error)}, status=400)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            # Something else stands where the API's schema has an object or a list.
            logger.warning("a review that cannot be read was refused: %s", type(error).__name__)
            return web.json_response({"error": "the review cannot be read"}, status=400)
        asked, said = review["request"], answer["response"]
        logger.info(
            "%s %s %s/%s by %s: %s",
            asked.get("operation"), (asked.get("kind") or {}).get("kind"), asked.get("namespace"),
            asked.get("name"), (asked.get("userInfo") or {}).get("username"),
            "allowed" if said["allowed"] else said["status"]["message"],
        )  # fmt: skip
        return web.json_response(answer)


async def serve(configuration: Path, ca_directory: Path, name: str, host: str, port: int) -> None:
    """Until SIGTERM or SIGINT. Raises AdmissionConfigurationError, or OSError when the port cannot be had."""
    webhook = Webhook(load(configuration))
    certificate = ServingCertificate(ca_directory, name)
    # No access log: paths and client addresses say nothing that the line above does not.
    runner = web.AppRunner(webhook.application, access_log=None)
    await runner.setup()
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    try:
        site = web.TCPSite(runner, host, port, ssl_context=certificate.context)
        await site.start()
        logger.info("admission webhook %s listens on port %d", name, port)
        while not ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), REFRESH_SECONDS)
            _refresh(certificate)
    finally:
        await runner.cleanup()


def _refresh(certificate: ServingCertificate) -> None:
    try:
        if certificate.refresh(datetime.datetime.now(datetime.UTC)):
            logger.info("the webhook has a new certificate")
    except AdmissionConfigurationError as error:
        logger.error("%s. %s", error, error.hint)  # the one of before serves while it lasts
