"""Rules that the whole tree keeps, so that nobody has to remember them."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs_debian("git")

ROOT = Path(__file__).parent.parent
PACKAGE = Path("proxy/coatcheck")

# Modules without a test file of their own, and the test file that exercises each. Words and values, or the
# parts of one thing that is tested as a whole. A module whose own logic could fail unseen never joins it.
COVERED_BY = {
    "call.py": "test_exchange.py",
    "cli/control.py": "cli/test_session.py",
    "cli/demo.py": "demo/test_main.py",
    "cli/diagnosis.py": "doctor/test_examination.py",
    "cli/own.py": "cli/test_run.py",
    "cli/sandbox_listing.py": "cli/test_sandbox.py",
    "cli/sandbox_run.py": "cli/test_sandbox.py",
    "cli/sidecar.py": "test_sidecar.py",
    "cli/terminal.py": "cli/test_sandbox.py",
    "control/passages.py": "control/test_sandboxes.py",
    "control/sandbox_models.py": "control/test_openapi.py",
    "control/sandbox_opening.py": "control/test_sandboxes.py",
    "control/sandbox_streams.py": "sandbox_client/test_client.py",
    "decision/elastic.py": "decision/test_scaling.py",
    "decision/filesystem.py": "policyfile/test_building.py",
    "decision/observation.py": "decision/test_observing.py",
    "demo/acts.py": "demo/test_main.py",
    "demo/agent_program.py": "e2e/test_the_agent_lives_inside.py",
    "demo/anthropic_wire.py": "demo/test_origin.py",
    "demo/attacks.py": "demo/test_main.py",
    "demo/clients.py": "demo/test_main.py",
    "demo/daemon.py": "demo/test_main.py",
    "demo/event_stream.py": "demo/test_origin.py",
    "demo/inside/agent.py": "demo/test_microvm.py",
    "demo/inside/anthropic_sdk.py": "demo/test_main.py",
    "demo/inside/attempts.py": "demo/test_sandbox.py",
    "demo/inside/no_proxy.py": "demo/test_main.py",
    "demo/inside/open_stream.py": "demo/test_main.py",
    "demo/inside/openai_sdk.py": "demo/test_main.py",
    "demo/inside/reach.py": "demo/test_main.py",
    "demo/inside/supervisor.py": "demo/test_sandbox.py",
    "demo/openai_wire.py": "demo/test_origin.py",
    "demo/reach.py": "demo/test_main.py",
    "demo/seen.py": "demo/test_origin.py",
    "demo/server.py": "demo/test_origin.py",
    "demo/stage.py": "demo/test_main.py",
    "demo/summary.py": "demo/test_main.py",
    "development.py": "cli/test_daemon.py",
    "doctor/finding.py": "doctor/test_examination.py",
    "fleet/scripts.py": "fleet/test_follower.py",
    "fleet/shared_log.py": "fleet/test_follower.py",
    "frameworks/deepagents.py": "e2e/test_a_sandbox_is_a_tool_of_deepagents.py",
    "frameworks/claude_agent_sdk.py": "e2e/test_the_agent_lives_inside.py",
    "inspection/daemon.py": "e2e/test_an_inspection_proves_that_nothing_is_there_to_steal.py",
    "launcher/api.py": "sandbox_client/test_client.py",
    "launcher/asking.py": "launcher/test_service.py",
    "launcher/bubblewrap.py": "launcher/test_namespace.py",
    "launcher/commands.py": "sandbox_client/test_client.py",
    "launcher/descriptors.py": "launcher/test_microvm.py",
    "launcher/device_state.py": "launcher/snapshots/test_machines.py",
    "launcher/emulator.py": "launcher/test_microvm.py",
    "launcher/files.py": "sandbox_client/test_client.py",
    "launcher/image/finishing.py": "launcher/image/test_debian.py",
    "launcher/image/manifest.py": "launcher/image/test_build.py",
    "launcher/image/parts.py": "launcher/image/test_build.py",
    "launcher/image/problem.py": "launcher/image/test_build.py",
    "launcher/image/programs.py": "launcher/image/test_ext4.py",
    "launcher/image/rootfs.py": "launcher/image/test_build.py",
    "launcher/image/spool.py": "launcher/image/test_archive.py",
    "launcher/machine.py": "launcher/test_microvm.py",
    "launcher/metadata_aws.py": "launcher/test_metadata.py",
    "launcher/metadata_handles.py": "launcher/test_metadata.py",
    "launcher/metadata_http.py": "launcher/test_metadata.py",
    "launcher/metadata_tokens.py": "launcher/test_metadata.py",
    "launcher/namespace_layout.py": "launcher/test_namespace.py",
    "launcher/machines.py": "launcher/test_service.py",
    "launcher/paging.py": "launcher/snapshots/test_machines.py",
    "launcher/ports.py": "sandbox_client/test_client.py",
    "launcher/preparing.py": "launcher/test_supervisor.py",
    "launcher/presence.py": "launcher/test_supervisor.py",
    "launcher/register.py": "launcher/test_service.py",
    "launcher/reporting.py": "launcher/test_supervisor.py",
    "launcher/run_directory.py": "launcher/test_service.py",
    "launcher/spawning.py": "launcher/test_service.py",
    "outgoing.py": "test_exchange.py",
    "planes/adaptations.py": "planes/test_traps_answers.py",
    "planes/connection.py": "planes/test_traps_connections.py",
    "planes/destination.py": "planes/test_traps_parsing.py",
    "planes/failing.py": "planes/test_traps_fail_closed.py",
    "planes/flow.py": "planes/test_stream.py",
    "planes/handshake.py": "faults/test_an_upstream_that_breaks_off_never_looks_finished.py",
    "planes/hooks.py": "planes/test_traps_fail_closed.py",
    "planes/http1.py": "planes/test_traps_parsing.py",
    "planes/layers.py": "planes/test_traps_connections.py",
    "planes/proxy_authorization.py": "planes/test_listener.py",
    "planes/reading.py": "planes/test_traps_connections.py",
    "planes/refusal.py": "planes/test_stream.py",
    "planes/stock_addon.py": "planes/test_stock.py",
    "planes/stock_passage.py": "planes/test_stock.py",
    "planes/stock_session.py": "planes/test_stock.py",
    "planes/tls.py": "planes/test_traps_addresses.py",
    "planes/tls_layers.py": "planes/test_stream.py",
    "planes/translate.py": "planes/test_stream.py",
    "planes/upstream.py": "planes/test_traps_addresses.py",
    "planes/websocket.py": "planes/test_stream.py",
    "policyfile/checking.py": "cli/test_policy.py",
    "policyfile/meaning/change.py": "policyfile/meaning/test_rendering.py",
    "policyfile/codes.py": "policyfile/test_lint.py",
    "policyfile/lint_files.py": "cli/test_policy_check.py",
    "policyfile/meaning/answers.py": "policyfile/test_lint_requests.py",
    "running.py": "cli/test_run.py",
    "sandbox_client/process.py": "sandbox_client/test_client.py",
    "serve.py": "planes/test_mitm.py",
    "state/asked.py": "fleet/test_approvals.py",
    "state/hearing.py": "fleet/test_follower.py",
    "state/opening.py": "state/test_restart.py",
    "sigv4/claim.py": "sigv4/test_resign.py",
    "sigv4/covered.py": "sigv4/test_resign.py",
    "sigv4/stand_in.py": "sigv4/test_resign.py",
    "stores/deadline.py": "stores/test_vault_stalls.py",
    "stores/vault_errors.py": "stores/test_vault.py",
    "stores/vault_token.py": "stores/test_vault_login.py",
    "telemetry/audit_chain.py": "telemetry/test_audit.py",
    "telemetry/audit_file.py": "telemetry/test_audit.py",
    "telemetry/events.py": "telemetry/test_audit_record.py",
    "telemetry/metrics_pulled.py": "telemetry/test_metrics.py",
    "telemetry/metrics_table.py": "telemetry/test_metrics.py",
    "standing.py": "test_exchange.py",
    "control_sandboxes.py": "test_control_client.py",
    "launcher/starting.py": "launcher/test_service.py",
    "launcher/unclaimed.py": "launcher/test_pool.py",
    "cli/sandbox_keeping.py": "e2e/test_a_sleeping_sandbox_outlives_its_daemon.py",
    "cli/events.py": "control/test_events.py",
    "sandbox_client/keeping.py": "e2e/test_three_clones_of_one_agent_finish_three_tasks.py",
    "verdict_record.py": "test_exchange.py",
}

# The only places where a secret leaves its wrapper. Everything else passes a Secret on, or has no business
# with one.
MAY_REVEAL = {
    "outgoing.py",  # puts secrets in right before the first upstream byte; says what to scrub
    "stores/",
    "doctor/secrets.py",  # asks whether the daemon could use it, and tells only that
}

LONGEST_FILE = {"proxy": 400, "tests": 500}
"""Lines. Beyond this, code is no longer read in one breath (aim for 250); a test file is a list of claims."""


def tracked(*patterns: str) -> list[Path]:
    """What git would hand to a reader. A file somebody is still writing is not judged yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True, capture_output=True
    ).stdout
    paths = [Path(name) for name in listed.decode().split("\0") if name]
    return [path for path in paths if (ROOT / path).is_file()]


def lines_with(pattern: str, paths: list[Path]) -> Iterator[str]:
    """`file:line: text` wherever `pattern` is found."""
    wanted = re.compile(pattern)
    for path in paths:
        text = (ROOT / path).read_bytes().decode("utf-8", "replace")
        for found in wanted.finditer(text):
            number = text.count("\n", 0, found.start()) + 1
            yield f"{path}:{number}: {found.group()[:80]!r}"


def modules() -> list[Path]:
    return [path.relative_to(PACKAGE) for path in tracked(f"{PACKAGE}/*.py")]


def test_dependencies_point_one_way() -> None:
    """cli > serve > planes | control > exchange > state | stores > decision (see pyproject.toml).

    As a program: within ours it would switch off all loggers that later tests listen to.
    """
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def own_test(module: Path) -> Path:
    return ROOT / "tests" / module.parent / f"test_{module.name}"


def test_every_module_has_its_test_file() -> None:
    """stores/vault.py is tested in tests/stores/test_vault.py, where a reader looks for it."""
    plain = [path for path in modules() if path.name not in ("__init__.py", "__main__.py")]
    without = {str(path) for path in plain if not own_test(path).is_file()}
    assert sorted(without - COVERED_BY.keys()) == []


def test_the_list_of_modules_without_a_test_file_is_true() -> None:
    """A module that is gone or has its own test leaves it, and the test that stands in for one exists."""
    known = {str(path) for path in modules()}
    needless = {name for name in COVERED_BY if name not in known or own_test(Path(name)).is_file()}
    missing = {name for name, test in COVERED_BY.items() if not (ROOT / "tests" / test).is_file()}
    assert (sorted(needless), sorted(missing)) == ([], [])


def test_no_private_key_is_in_the_tree() -> None:
    """Keys are made where they are used; one in a repository is everybody's."""
    pattern = r"-----BEGIN [A-Z ]*PRIVATE KEY-----(\s|\\n)*[A-Za-z0-9+/]{60}"
    assert list(lines_with(pattern, tracked())) == []


def test_no_address_of_a_registry_and_no_path_of_one_machine_is_in_the_tree() -> None:
    """Which index and which directory is the business of the machine; the lock holds hashes only."""
    registries = r"pypi\.org|pythonhosted\.org|registry\.npmjs|npmjs\.org|deb\.debian\.org|crates\.io"
    here = "|".join(re.escape(f"{place}/") for place in (ROOT, Path.home()))
    assert list(lines_with(f"{registries}|{here}", tracked())) == []


def test_no_names_that_mislead() -> None:
    """mitmproxy's pretty_host is what the client claims (its Host header), not where the request goes."""
    assert list(lines_with(r"\.pretty_(?:host|url)\b", tracked("proxy/*.py"))) == []


def test_proxy_is_no_package() -> None:
    """`import proxy.coatcheck` would load every class a second time, and no isinstance would hold."""
    assert not (ROOT / "proxy/__init__.py").exists()
    assert list(lines_with(r"(?m)^\s*(?:from|import) proxy\b", tracked("*.py"))) == []


def test_secrets_leave_their_wrapper_in_few_places() -> None:
    """`reveal()` is greppable so that this list can be short and read by people."""
    elsewhere = [path for path in modules() if not str(path).startswith(tuple(MAY_REVEAL))]
    assert list(lines_with(r"\breveal\(\)", [PACKAGE / path for path in elsewhere])) == []


def test_files_stay_short() -> None:
    """A file is read in one breath, tests included."""
    lengths = {path: (ROOT / path).read_text().count("\n") for path in tracked("*.py")}
    too_long = {str(path): n for path, n in lengths.items() if n > LONGEST_FILE.get(path.parts[0], 400)}
    assert too_long == {}


def test_the_lock_holds_versions_and_hashes_and_nothing_else() -> None:
    """pip refuses what is not hashed; an address would bind every machine to ours."""
    entry = re.compile(
        r"[a-z0-9-]+==[0-9][\w.]*(?: ; [^\\\n]+?)? \\\n(?:    --hash=sha256:[0-9a-f]{64} \\\n)*"
        r"    --hash=sha256:[0-9a-f]{64}\n"
    )
    lock = (ROOT / "requirements.lock").read_text()
    assert entry.sub("", lock) == ""


def test_everything_that_pyproject_names_is_locked() -> None:
    """A dependency that was added without `make lock` would be missing on the next machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(name for extra in extras for name in extra)]
    names = {re.split(r"[\[<>=~!;]", name)[0].lower().replace("_", "-").replace(".", "-") for name in wanted}
    locked = set(re.findall(r"(?m)^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text()))
    assert names - locked == set()
