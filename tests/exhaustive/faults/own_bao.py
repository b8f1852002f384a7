"""An OpenBao that keeps what it holds on disk: it is sealed, killed and started again, as real ones are."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hvac
import requests

from coatcheck.secrets.embedded import _binary
from tests.known_secrets import remember_secret
from tests.ports import free_port

PATIENCE = 60.0
"""Seconds; a start takes one or two on an idle machine."""

POLICY = 'path "secret/data/*" { capabilities = ["read"] }'
"""What the daemon's role may do."""


@dataclass
class OwnBao:
    """Made by `own_bao`: it runs, unsealed, with KV version 2 at `secret/` and an AppRole `coatcheck`."""

    directory: Path
    port: int
    cluster_port: int
    key: str = field(default="", repr=False)
    root_token: str = field(default="", repr=False)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> Any:
        session = requests.Session()
        session.trust_env = False
        return hvac.Client(  # type: ignore[no-untyped-call]
            url=self.url, token=self.root_token, session=session, timeout=PATIENCE
        )

    def start(self) -> None:
        """Returns when it listens; it is sealed."""
        assert self.process is None or self.process.poll() is not None
        with (self.directory / "openbao.log").open("ab") as log:
            self.process = subprocess.Popen(
                [_binary(), "server", f"-config={self.directory}/config.hcl"],
                env={"HOME": "/nonexistent"}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        _until(lambda: "sealed" in self._status())

    def unseal(self) -> None:
        """Returns when it answers for secrets again."""
        self.client.sys.submit_unseal_key(self.key)
        _until(lambda: self.client.secrets.kv.v2.read_configuration() is not None)

    def seal(self) -> None:
        self.client.sys.seal()

    def kill(self) -> None:
        """With no chance to say a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It holds its connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def put(self, path: str, **fields: object) -> None:
        self.client.secrets.kv.v2.create_or_update_secret(path, fields)

    def login(self, directory: Path) -> dict[str, str]:
        """Settings of a daemon that logs in as AppRole `coatcheck`, with a new secret_id in a file."""
        approle = self.client.auth.approle
        file = directory / "secret-id"
        file.touch(0o600)
        file.write_text(approle.generate_secret_id("coatcheck")["data"]["secret_id"])
        return {
            "vault_url": self.url,
            "vault_login": "approle",
            "vault_role_id": approle.read_role_id("coatcheck")["data"]["role_id"],
            "vault_secret_id_file": str(file),
        }

    def _status(self) -> dict[str, Any]:
        try:
            return dict(json.loads(requests.get(f"{self.url}/v1/sys/seal-status", timeout=1).text))
        except (requests.RequestException, ValueError):
            return {}

    def set_up(self) -> None:
        made = self.client.sys.initialize(1, 1)
        self.key, self.root_token = made["keys"][0], made["root_token"]
        remember_secret("a restarted OpenBao's unseal key", self.key)
        remember_secret("a restarted OpenBao's root token", self.root_token)
        self.client.sys.submit_unseal_key(self.key)
        _until(lambda: self.client.sys.is_initialized() and self._mount())
        self.client.sys.enable_auth_method("approle")
        self.client.sys.create_or_update_policy("coatcheck", POLICY)
        self.client.auth.approle.create_or_update_approle(
            "coatcheck", token_policies=["coatcheck"], token_ttl="1h", token_max_ttl="24h"
        )
        _until(lambda: self.client.secrets.kv.v2.read_configuration() is not None)

    def _mount(self) -> bool:
        self.client.sys.enable_secrets_engine("kv", "secret", options={"version": "2"})
        return True


def _until(done: Callable[[], bool]) -> None:
    """A node that was just unsealed elects itself, and refuses meanwhile."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if done():
                return
        except (hvac.exceptions.VaultError, requests.RequestException):
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "OpenBao did not come up"
        time.sleep(0.05)


@contextmanager
def own_bao(directory: Path) -> Iterator[OwnBao]:
    directory.mkdir(exist_ok=True)
    (directory / "data").mkdir()
    bao = OwnBao(directory, free_port(), free_port())
    (directory / "config.hcl").write_text(
        f'storage "raft" {{\n path = "{directory}/data"\n node_id = "a"\n performance_multiplier = 1\n}}\n'
        f'listener "tcp" {{\n address = "127.0.0.1:{bao.port}"\n tls_disable = true\n}}\n'
        f'api_addr = "{bao.url}"\ncluster_addr = "http://127.0.0.1:{bao.cluster_port}"\n'
    )
    bao.start()
    try:
        bao.set_up()
        yield bao
    finally:
        if bao.process is not None:
            bao.process.kill()
            bao.process.wait()
