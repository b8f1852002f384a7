"""The webhook over HTTPS, as the API server asks it."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from coatcheck.kubernetes.webhook import server
from coatcheck.kubernetes.webhook.server import MAX_REVIEW
from tests.kubernetes.webhook.pods import ADMISSION, pod, review
from tests.kubernetes.webhook.webhook import SECONDS, Webhook, running_webhook, write_ca
from tests.ports import free_port

NAME = "cc-admission.coatcheck.svc"


def configuration(directory: Path) -> Path:
    file = directory / "admission.yaml"
    YAML(typ="safe", pure=True).dump(ADMISSION.model_dump(mode="json"), file)
    return file


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    directory = tmp_path_factory.mktemp("webhook")
    ca = write_ca(directory / "ca")
    arguments = ["admission", "serve", "--configuration", str(configuration(directory))]
    arguments += ["--ca-directory", str(directory / "ca"), "--name", NAME]
    with running_webhook(arguments, ca, directory / "log") as running:
        yield running


def test_it_answers_by_its_services_name(webhook: Webhook) -> None:
    """A pod is patched, another refused."""
    assert webhook.review("/mutate", review(pod()))["patchType"] == "JSONPatch"
    refused = webhook.review("/mutate", review(pod(hostNetwork=True)))
    assert not refused["allowed"] and refused["status"]["code"] == 403
    assert not webhook.review("/validate", review(pod()))["allowed"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"apiVersion": "admission.k8s.io/v1"',
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(review({"spec": {"containers": 5}})).encode(),
        json.dumps(review({"spec": {"containers": ["a"]}})).encode(),
        json.dumps(review({"spec": {"containers": [{"env": 7}]}})).encode(),
        json.dumps(review({"spec": {"containers": [{}], "volumes": {"a": 1}}})).encode(),
        json.dumps(review({"metadata": [], "spec": {"containers": [{"securityContext": "x"}]}})).encode(),
    ],
    ids=range(11),
)
def test_what_cannot_be_read_is_an_error_and_no_permission(webhook: Webhook, body: bytes) -> None:
    """The API server fails closed on it, and the webhook goes on."""
    for path in ("/mutate", "/validate"):
        status, answer = webhook.ask(path, body)
        assert status == 400 or answer["response"]["allowed"] is False
    assert webhook.review("/mutate", review(pod()))["allowed"]


def test_a_review_that_is_too_large_is_refused(webhook: Webhook) -> None:
    """More than the API server can hold."""
    large = review(pod(annotations={"x": "y" * MAX_REVIEW}))
    assert webhook.ask("/mutate", json.dumps(large).encode())[0] == 413


def test_nothing_else_is_there(webhook: Webhook) -> None:
    """But for the probes' page."""
    assert webhook.ask("/metrics", b"{}")[0] == 404
    assert webhook.ask("/healthz", b"{}")[0] == 405


async def test_its_certificate_is_another_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a look now and then: a CA that was replaced counts without a restart, and a broken one changes
    nothing but is told."""
    monkeypatch.setattr(server, "REFRESH_SECONDS", 0.02)
    port, old = free_port(), write_ca(tmp_path, "old")
    serving = asyncio.create_task(server.serve(configuration(tmp_path), tmp_path, NAME, "127.0.0.1", port))

    async def trusted(ca: bytes) -> None:
        """Once a client that trusts `ca` alone is served."""
        context = ssl.create_default_context(cadata=ca.decode())
        while not serving.done():
            try:
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname=NAME
                )
            except (ConnectionError, ssl.SSLError):
                await asyncio.sleep(0.02)
            else:
                writer.transport.abort()
                return
        await serving

    try:
        async with asyncio.timeout(SECONDS):
            await trusted(old)
            new = write_ca(tmp_path, "new")
            await trusted(new)
            caplog.clear()
            (tmp_path / "ca.crt").write_text("no PEM")
            while "no certificate can be made" not in caplog.text:
                await asyncio.sleep(0.02)
            await trusted(new)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
