"""Everything outside the sandbox: OpenBao with the real secrets, the upstreams, the daemon."""

import secrets
import shutil
import string
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.settings.explained import load_settings
from demo.daemon import DemoDaemon, running_daemon
from demo.upstreams.certificate import upstream_certificate
from demo.upstreams.git_server import git_server, make_repository
from demo.upstreams.origin import origin
from demo.upstreams.seen import Seen
from demo.upstreams.server import TlsServer

ORIGIN_NAMES = ("api.openai.com", "api.anthropic.com", "internal.example", "docs.example", "attacker.example")
"""All served by one origin, which really listens: an attack that got through would be seen."""
GIT_NAME = "github.com"
README = "the README of a private repository"
_EVENT_GAP = 0.02
"""Seconds between two events of a stream: long enough to see that they are not collected."""

_ALPHABET = string.ascii_letters + string.digits
_SECRETS = {
    "openai": ("api_key", "sk-proj-", 48),
    "anthropic": ("api_key", "sk-ant-api03-", 80),
    "github": ("token", "ghp_", 36),
    "internal": ("token", "int_", 40),
}
"""Credential -> its field in OpenBao, and what its real secret looks like."""


@dataclass(frozen=True, slots=True)
class Stage:
    """All parts, running."""

    keys: Mapping[str, str]
    """The real secrets by credential. They are random, and worth nothing outside this run."""
    others: Mapping[str, str]
    """Further secrets that a sandbox must never hold."""
    vault: EmbeddedVault
    origin: TlsServer
    git: TlsServer
    repository: Path
    upstream_ca: Path
    daemon: DemoDaemon
    state: Path
    """The daemon's state directory."""
    checkpoints: Path
    """Where the audit log's signed checkpoints go besides."""
    policy_hash: str
    cache: Path
    """Where images are: the user's, as they outlive the demo."""

    @property
    def seen(self) -> list[Seen]:
        """What the upstreams saw so far, in order."""
        return sorted((*self.origin.seen, *self.git.seen), key=lambda seen: seen.at)


def _text(file: Path) -> str:
    return file.read_text().strip()


def real_secrets() -> dict[str, str]:
    return {
        name: prefix + "".join(secrets.choice(_ALPHABET) for _ in range(length))
        for name, (_, prefix, length) in _SECRETS.items()
    }


@asynccontextmanager
async def build(directory: Path, logs: Path) -> AsyncIterator[Stage]:
    """Start all of it below `directory`; stop all of it at the end of the block."""
    keys = real_secrets()
    tls = upstream_certificate(directory, [*ORIGIN_NAMES, GIT_NAME])
    repository = directory / "upstream" / "private.git"
    repository.parent.mkdir()
    make_repository(repository, {"README": README + "\n"})
    async with AsyncExitStack() as stack:
        vault = await stack.enter_async_context(EmbeddedVault.start(log=logs / "openbao.log"))
        for name, key in keys.items():
            await vault.put(name, {_SECRETS[name][0]: key})
        login = await vault.daemon_login(directory)
        upstream = await stack.enter_async_context(
            origin(tls.certificate, tls.key, keys, names=ORIGIN_NAMES, event_gap=_EVENT_GAP)
        )
        git = await stack.enter_async_context(
            git_server(tls.certificate, tls.key, repository, keys["github"], names=[GIT_NAME])
        )
        ports = dict.fromkeys(ORIGIN_NAMES, upstream.port) | {GIT_NAME: git.port}
        policies = directory / "policies"
        policies.mkdir(0o755)
        shutil.copyfile(Path(__file__).parent / "policy.yaml", policies / "demo.yaml")
        checkpoints = directory / "checkpoints.jsonl"
        control = directory / "run" / "control.sock"
        cache = load_settings().cache
        settings = {
            "state_dir": str(directory / "state"),
            "runtime_dir": str(control.parent),
            "cache_dir": str(cache),
            "policy": str(policies),
            "vault_url": vault.url,
            "vault_login": "approle",
            "vault_role_id": login.role_id,
            "vault_secret_id_file": str(login.secret_id_file),
            "upstream_ca_file": str(tls.ca),
            "allowed_networks": ["127.0.0.0/8"],
            "connect_to": {f"{name}:443": f"127.0.0.1:{port}" for name, port in ports.items()},
            "audit_checkpoints": str(checkpoints),
            "drain_seconds": 1.0,
        }
        daemon = await stack.enter_async_context(running_daemon(settings, control, logs / "daemon.log"))
        others = {
            "OpenBao's root token": vault.root_token,
            "the daemon's OpenBao login": _text(login.secret_id_file),
        }
        yield Stage(
            keys,
            others,
            vault,
            upstream,
            git,
            repository,
            tls.ca,
            daemon,
            state=directory / "state",
            checkpoints=checkpoints,
            policy_hash=await daemon.policy_hash(),
            cache=cache,
        )
