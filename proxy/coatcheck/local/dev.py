"""`coatcheck dev`: a daemon with an OpenBao in memory, and what to type next."""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from coatcheck.decision.message import RequestHead
from coatcheck.decision.policy import Policy
from coatcheck.local.in_process import own_daemon
from coatcheck.policy.bundle.signed import SignedPolicies
from coatcheck.policy.checking import load_file
from coatcheck.policy.file.loading import load_directory
from coatcheck.secrets.embedded import EmbeddedVault
from coatcheck.settings.daemon import Settings
from coatcheck.settings.explained import load_settings

SESSION_SECONDS = 3600.0
"""The lease of a session that was opened by hand: nobody types a renewal every two minutes."""
DRAIN_SECONDS = 2.0
"""Ctrl-C in development means now."""


async def develop(directory: Path, policy: Path, port: int | None, announce: Callable[[str], None]) -> None:
    """Run until SIGINT or SIGTERM. Everything is below `directory` (0700), made if it is missing.

    Raises EmbeddedVaultError, PolicyError, and what a daemon raises at its start.
    """
    policies = await asyncio.to_thread(_prepare, directory, policy)
    async with EmbeddedVault.start(log=directory / "openbao.log") as vault:
        login = await vault.daemon_login(directory)
        token = _private(directory / "root-token", vault.root_token)
        try:
            settings = load_settings(
                state_dir=directory / "state",
                runtime_dir=directory / "run",
                control_socket=directory / "run/control.sock",
                control_port=load_settings(policy=policy).control_port or 0,
                policy=policy,
                proxy_port=port,
                vault_url=vault.url,
                vault_login="approle",
                vault_role_id=login.role_id,
                vault_secret_id_file=login.secret_id_file,
                vault_mount=login.mount,
                session_lease=SESSION_SECONDS,
                drain_seconds=DRAIN_SECONDS,
            )
            async with own_daemon(settings) as serving:
                announce(lines(settings, vault.url, token, tuple(policies.values())))
                await asyncio.wait((serving,))
                serving.result()
        finally:
            token.unlink(missing_ok=True)


def _prepare(directory: Path, policy: Path) -> Mapping[str, Policy]:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    trust_root = load_settings(policy=policy).policy_trust_root
    if trust_root is not None:
        return SignedPolicies(trust_root).read(policy)
    return load_directory(policy) if policy.is_dir() else {policy.stem: load_file(policy)}


def lines(settings: Settings, vault: str, token: Path, policies: Sequence[Policy]) -> str:
    """What to paste into another terminal."""
    bao, coatcheck = _program("bao"), _program("coatcheck")
    names = [policy.name for policy in policies]
    which = f" --policy {shlex.quote(names[0])}" if names and "default" not in names else ""
    puts: list[str] = []
    for policy in policies:
        for credential in policy.credentials.values():
            ref = credential.secret
            # One line each: two credentials do not get one key, and what is pasted is not typed into `read`.
            put = (
                f"printf '{ref.path} {ref.field}: ' && read -rs SECRET && echo && "
                f'printf %s "$SECRET" | {bao} kv put -mount={ref.mount} {ref.path} {ref.field}=-'
            )
            if ref.store == "vault" and put not in puts:
                puts.append(put)
    return "\n".join(
        [
            "# coatcheck for development: everything here ends with Ctrl-C",
            "# paste into another terminal:",
            f"export COATCHECK_CONTROL_SOCKET={shlex.quote(str(settings.control))}",
            f"export COATCHECK_STATE_DIR={shlex.quote(str(settings.state_dir))}",
            f"export BAO_ADDR={vault}",
            f'export BAO_TOKEN="$(cat {shlex.quote(str(token))})"',
            "",
            "# 1. a real key into OpenBao: it asks, you type (nothing shows it) and press Enter",
            *puts,
            "",
            "# 2. a program with handles in place of keys",
            f"{coatcheck} run{which} -- python agent.py",
            "",
            "# 3. or a session by hand, for an hour",
            f'eval "$({coatcheck} session create{which} --style sh)"',
            f"curl {_example(policies)}",
            *(
                ("", "# 4. what happens, in a browser", f"{coatcheck} page")
                if settings.control_port is not None
                else ()
            ),
            "",
        ]
    )


def _example(policies: Iterable[Policy]) -> str:
    """curl's arguments for a request that the policies allow, as far as one can be guessed from them."""
    for policy in policies:
        for rule in policy.rules:
            hosts = [host.suffix for host in rule.hosts if not host.wildcard]
            paths = [f"/{'/'.join(path.segments)}" for path in rule.paths if "*" not in path.segments]
            for name in rule.credentials:
                credential = policy.credentials[name]
                if not (
                    "GET" in rule.methods and hosts and credential.env and credential.inject.sends_secret
                ):
                    continue
                path, variable = paths[0] if paths else "/", f"${credential.env}"
                shown = credential.inject.shown(RequestHead("GET", path, ()), variable).headers
                for header, value in shown:
                    if variable in value:  # in Basic it is encoded, and the shell would not see it
                        return f'https://{hosts[0]}{path} -H "{header.title()}: {value}"'
    return "https://…"


def _program(name: str) -> str:
    """`name`, or its path beside our Python where another terminal would not find it."""
    beside = Path(sys.executable).parent / name
    return name if shutil.which(name) or not beside.is_file() else shlex.quote(str(beside))


def _private(path: Path, content: str) -> Path:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(content)
    return path
