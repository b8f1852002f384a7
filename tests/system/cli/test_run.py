"""`coatcheck run`: what the command holds, how it ends, and what is left of it afterwards."""

import asyncio
import json
import re
import signal
import socket
import time
from pathlib import Path

from coatcheck.policy.shipped import POLICY
from coatcheck.secrets.embedded import EmbeddedVault
from demo.upstreams.server import TlsServer
from tests.cli.transcript import coatcheck
from tests.system.cli.agent import AGENT, ENVIRON, refused
from tests.system.cli.conftest import Served, alive, end


async def test_the_command_holds_handles_and_no_secret(
    daemon: Served, origin_server: TlsServer, real_keys: dict[str, str], tmp_path: Path
) -> None:
    """Its real environment, as the kernel shows it: no key of ours, of the user's, or of Vault."""
    given = {
        "OPENAI_API_KEY": "sk-users-own-0123456789",
        "AWS_SECRET_ACCESS_KEY": "aws-users-own-0123456789",
        "DATABASE_URL": "postgres://app:database-password@db/app",
        "MY_SERVICE_TOKEN": "token-users-own-0123456789",
        "COATCHECK_VAULT_TOKEN": "vault-users-own-0123456789",
        "PLAIN": "kept",
    }
    said = await daemon.coatcheck("run", "--", *ENVIRON, **given)
    assert said.code == 0
    held = dict(line.split("=", 1) for line in said.out.strip("\0\n").split("\0"))
    assert held["OPENAI_API_KEY"].startswith("sk-cch_") and held["ANTHROPIC_API_KEY"].startswith(
        "sk-ant-cch_"
    )
    assert held["PLAIN"] == "kept" and Path(held["SSL_CERT_FILE"]).is_file()
    for value in (*real_keys.values(), *(value for name, value in given.items() if name != "PLAIN")):
        assert value not in said.out
    told = said.error.splitlines(keepends=True)
    assert told[0] == (
        f"note: the daemon that decides has pid {daemon.process.pid} and listens at"
        f" {daemon.settings['COATCHECK_CONTROL_SOCKET']}\n"
    )
    assert told[2] == (
        "note: not passed on, as they may hold secrets: AWS_SECRET_ACCESS_KEY, COATCHECK_CONTROL_SOCKET, "
        "COATCHECK_VAULT_TOKEN, DATABASE_URL, MY_SERVICE_TOKEN (--keep-env NAME passes one on)\n"
    )
    kept = await daemon.coatcheck("run", "--keep-env", "MY_SERVICE_TOKEN", "--", *ENVIRON, **given)
    assert "MY_SERVICE_TOKEN=token-users-own-0123456789" in kept.out


async def test_the_origin_sees_the_real_key(
    daemon: Served, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """The command's request arrives with the key that it never held, and its session ends with it."""
    said = await daemon.coatcheck("run", "--", *AGENT, "once")
    assert (said.code, said.out) == (0, "200\n"), said.err
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]
    assert set((await daemon.sessions()).values()) == {"ended"}


async def test_the_exit_code_is_the_commands(daemon: Served) -> None:
    """As a shell would say it; and however it ended, its session is over."""
    for command, code, error in (
        (["/bin/sh", "-c", "exit 7"], 7, ""),
        (["/bin/sh", "-c", "kill -9 $$"], 137, ""),
        (["/bin/sh", "-c", "kill -TERM $$"], 143, ""),
        (["/no/such/command"], 127, "error: /no/such/command: command not found\n"),
        (["/etc/passwd"], 126, "error: /etc/passwd cannot be started: Permission denied\n"),
    ):
        said = await daemon.coatcheck("run", "--", *command)
        assert (said.code, said.out) == (code, ""), command
        assert said.err.endswith(error)
    assert set((await daemon.sessions()).values()) == {"ended"}


async def test_sigterm_is_passed_on_and_the_session_ends(daemon: Served) -> None:
    """The command ends as it likes, and its code is ours."""
    running = daemon.start("run", "--", *AGENT, "until-signal")
    try:
        assert running.stdout is not None
        await asyncio.to_thread(running.stdout.readline)
        running.send_signal(signal.SIGTERM)
        out, _ = await asyncio.to_thread(running.communicate, timeout=30)
        assert (json.loads(out)["came"], running.returncode) == ([signal.SIGTERM], 5)
    finally:
        end(running.pid)
        running.wait()
    assert set((await daemon.sessions()).values()) == {"ended"}


async def test_killing_coatcheck_run_kills_the_handle_within_a_lease(daemon: Served, short_dir: Path) -> None:
    """kill -9 of ours: nobody is left to end the session or renew its lease, so it lapses."""
    running = daemon.start("run", "--lease", "1", "--", *AGENT, "wait")
    pid = 0
    try:
        assert running.stdout is not None
        told = json.loads(await asyncio.to_thread(running.stdout.readline))
        pid = told["pid"]
        trust = short_dir / "run/trust/ca-bundle.pem"
        assert not await asyncio.to_thread(refused, told["proxy"], told["key"], trust)
        running.kill()
        running.wait()
        killed = time.monotonic()
        while not await asyncio.to_thread(refused, told["proxy"], told["key"], trust):
            assert time.monotonic() - killed < 15
        assert alive(pid)  # the orphan lives on, and holds nothing
    finally:
        end(running.pid)
        end(pid)
        running.wait()
    until_status = time.monotonic() + 30
    while set((await daemon.sessions()).values()) != {"lapsed"}:
        assert time.monotonic() < until_status


# --- without a daemon --------------------------------------------------------------------------------


async def test_a_daemon_of_its_own_with_a_secret_that_is_piped_in(
    upstream_settings: dict[str, str],
    origin_server: TlsServer,
    real_keys: dict[str, str],
    tmp_path: Path,
    short_dir: Path,
) -> None:
    """The five-minute path: no Vault, no daemon, nothing on disk, and nothing left behind."""
    said = await asyncio.to_thread(
        coatcheck, "run", "--secret", "openai=-", "--", *AGENT, "once",
        cwd=tmp_path, env=upstream_settings | {"TMPDIR": str(short_dir)}, stdin=real_keys["openai"] + "\n",
    )  # fmt: skip
    assert (said.code, said.out) == (0, "200\n"), said.err
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]
    assert not [*short_dir.iterdir(), *tmp_path.iterdir()]


async def test_what_was_refused_is_told_with_the_rule_that_allows_it(
    daemon: Served, origin_server: TlsServer
) -> None:
    """The operator reads it on standard error, puts the printed line into the policy, and it is allowed."""
    ask = (*AGENT, "once", "https://api.openai.com/v1/files")
    said = await daemon.coatcheck("run", "--credential", "openai", "--", *ask)
    assert said.out == "403\n"
    warning, what, to_do, rule = said.error.split("warning: ")[1].splitlines()
    assert warning == "1 request was refused:"
    assert what == (
        "  GET https://api.openai.com/v1/files: the policy does not allow this method and path on this host"
        " (path_not_allowed)"
    )
    assert to_do == "  to allow it, add to the rules of policy default:"
    policy = daemon.cwd / "policies/default.yaml"
    policy.write_text(f"{policy.read_text().rstrip()}\n{rule}\n")
    daemon.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while (said := await daemon.coatcheck("run", "--credential", "openai", "--", *ask)).out == "403\n":
        assert time.monotonic() < deadline, said.err
    assert "refused" not in said.err and [seen.path for seen in origin_server.seen] == ["/v1/files"]


async def test_a_command_does_not_start_without_what_it_was_granted(daemon: Served) -> None:
    """A credential that was asked for by name; one of the whole policy is only mentioned."""
    said = await daemon.coatcheck("run", "--credential", "github-api", "--", *ENVIRON)
    assert (said.code, said.out) == (125, "")
    assert "error: credential github-api: cannot read secret/github from Vault: " in said.error
    assert "kv put -mount=secret github token=-" in said.error
    said = await daemon.coatcheck("run", "--", *ENVIRON)
    assert said.code == 0 and "will be refused: github-api, github-git (" in said.error


async def test_each_mistake_with_vault_has_its_own_words(
    bao: EmbeddedVault, tmp_path: Path, short_dir: Path, output_dir: Path
) -> None:
    """Told before the command starts, each with its own next step."""
    policy = POLICY.read_text()
    for name, text in (("p", policy), ("mount", policy.replace("vault:secret/", "vault:nosuch/"))):
        (tmp_path / f"{name}.yaml").write_text(text)
        (tmp_path / f"{name}.yaml").chmod(0o644)
    (tmp_path / "token").write_text(bao.root_token)
    (tmp_path / "wrong").write_text("s.of-another-server")
    for name in ("token", "wrong"):
        (tmp_path / name).chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as once:
        nobody = once.getsockname()[1]
    port = bao.url.rpartition(":")[2]
    async with EmbeddedVault.start(log=output_dir / "sealed.log") as sealed:
        (tmp_path / "sealed").write_text(sealed.root_token)
        (tmp_path / "sealed").chmod(0o600)
        await sealed.call(lambda client: client.sys.seal())

        async def mistake(url: str, token: str = "token", policy: str = "p") -> str:
            said = await asyncio.to_thread(
                coatcheck, "run", "--policy", f"{policy}.yaml", "--credential", "openai", "--", *ENVIRON,
                cwd=tmp_path, env={
                    "COATCHECK_VAULT_URL": url, "COATCHECK_VAULT_TOKEN_FILE": token, "TMPDIR": str(short_dir),
                },
            )  # fmt: skip
            assert (said.code, said.out) == (125, ""), said
            assert "wait a little" not in said.err and bao.root_token not in said.err
            return said.error

        told = await asyncio.gather(
            mistake(bao.url, token="wrong"),
            mistake(bao.url, token="not-there"),
            mistake(sealed.url, token="sealed"),
            mistake(bao.url, policy="mount"),
            mistake(f"http://127.0.0.1:{nobody}"),
            mistake(f"https://127.0.0.1:{port}"),
            mistake("https://vault.invalid"),
        )
    for said, expected in zip(
        told,
        (
            ("vault: cannot log in: permission denied (403)", "COATCHECK_VAULT_TOKEN_FILE"),
            ("not-there: No such file", "COATCHECK_VAULT_"),
            ("is sealed", "vault operator unseal"),
            ("nothing is mounted there (404)", "vault secrets list"),
            ("cannot be reached: Connection refused", "port in COATCHECK_VAULT_URL"),
            ("did not complete the TLS handshake", "http://"),
            ("cannot log in: ", "COATCHECK_VAULT_URL"),
        ),
        strict=True,
    ):
        assert all(words in said for words in expected), said
    assert len({said.partition("error: ")[2] for said in told}) == len(told)


def test_a_secret_on_the_command_line_is_not_repeated(tmp_path: Path) -> None:
    """A key in place of its file's name: errors go to logs and screens."""
    said = coatcheck("run", "--secret", "openai=sk-typed-by-mistake", "--", "true", cwd=tmp_path)
    assert said.code == 2 and "sk-typed" not in said.err and said.out == ""
    assert "openai=- to type it in" in said.error


async def test_the_audit_log_of_its_own_daemon_is_kept_and_verifies(
    upstream_settings: dict[str, str],
    origin_server: TlsServer,
    real_keys: dict[str, str],
    tmp_path: Path,
    short_dir: Path,
) -> None:
    """Whose daemon decided is said, and the log is where the last line says."""
    env = upstream_settings | {"TMPDIR": str(short_dir), "XDG_STATE_HOME": str(tmp_path)}
    said = await asyncio.to_thread(
        coatcheck, "run", "--credential", "openai", "--", *AGENT, "once",
        cwd=tmp_path, env=env | {"COATCHECK_SECRETS_DIR": str(tmp_path)},
    )  # fmt: skip
    assert said.code == 125 and f"no daemon answers at {tmp_path}/coatcheck/run/control.sock" in said.error
    said = await asyncio.to_thread(
        coatcheck, "run", "--secret", "openai=-", "--", *AGENT, "once",
        cwd=tmp_path, env=env, stdin=real_keys["openai"],
    )  # fmt: skip
    (log,) = re.findall(r"(?m)^note: the audit log is kept: coatcheck audit tail (\S+)$", said.error)
    assert Path(log).parent.parent.parent == tmp_path / "coatcheck-runs"
    tail = await asyncio.to_thread(coatcheck, "audit", "tail", log, cwd=tmp_path)
    assert "https://api.openai.com/v1/models" in tail.out
    verified = await asyncio.to_thread(coatcheck, "audit", "verify", log, cwd=tmp_path)
    assert verified.code == 0 and "signed through record" in verified.out
    assert not any(real_keys["openai"] in path.read_text() for path in Path(log).parent.iterdir())
