"""Rules that the whole tree keeps, so that nobody has to remember them."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from grimp import ImportGraph, build_graph

from tests.hard import equivalent, mutation
from tests.import_cycles import cycle_in

pytestmark = pytest.mark.needs_debian("git")

ROOT = Path(__file__).parent.parent
PACKAGE = Path("proxy/coatcheck")

# Modules without a test file of their own, and the test file that exercises each. Words and values, or the
# parts of one thing that is tested as a whole. A module whose own logic could fail unseen never joins it.
COVERED_BY = {
    "frameworks/claude_agent_sdk.py": "client/test_deprecated_names.py",
    "frameworks/deepagents.py": "client/test_deprecated_names.py",
    "sandbox_client/blocking.py": "client/test_deprecated_names.py",
    "request/call.py": "request/test_exchange.py",
    "injectors/header.py": "decision/test_substitute.py",
    "injectors/basic.py": "decision/test_substitute.py",
    "injectors/query.py": "decision/test_substitute_target.py",
    "injectors/path.py": "decision/test_substitute_target.py",
    "injectors/sigv4.py": "sigv4/test_resign.py",
    "decision/injection.py": "decision/test_substitute.py",
    "cli/control.py": "system/cli/test_session.py",
    "cli/diagnosis.py": "system/doctor/test_examination.py",
    "cli/own.py": "system/cli/test_run.py",
    "cli/sandbox_listing.py": "system/cli/test_sandbox.py",
    "cli/sandbox_run.py": "system/cli/test_sandbox.py",
    "cli/sidecar.py": "system/kubernetes/test_sidecar.py",
    "cli/terminal.py": "system/cli/test_sandbox.py",
    "control/forwarding.py": "system/control/resources/test_sandboxes.py",
    "control/resources/sandbox_models.py": "system/control/test_openapi.py",
    "control/sandbox_opening.py": "system/control/resources/test_sandboxes.py",
    "control/resources/sandbox_returning.py": "system/control/resources/test_sandbox_snapshots.py",
    "durable/snapshotting.py": "system/control/resources/test_sandbox_snapshots.py",
    "control/resources/sandbox_streams.py": "system/client/sandbox/test_client.py",
    "durable/elastic.py": "durable/test_scaling.py",
    "decision/denial.py": "decision/test_verdict.py",
    "decision/filesystem.py": "policy/file/test_building.py",
    "decision/observation.py": "decision/test_observing.py",
    "local/dev.py": "system/cli/test_daemon.py",
    "doctor/finding.py": "system/doctor/test_examination.py",
    "cli/fleet.py": "fleet/test_schema.py",
    "fleet/postgres.py": "system/fleet/test_connection.py",
    "fleet/statements.py": "system/fleet/test_follower.py",
    "fleet/store.py": "system/fleet/test_follower.py",
    "client/frameworks/deepagents.py": "system/e2e/test_a_sandbox_is_a_tool_of_deepagents.py",
    "client/frameworks/claude_agent_sdk.py": "system/e2e/test_the_agent_lives_inside.py",
    "inspection/daemon.py": "system/e2e/test_an_inspection_proves_that_nothing_is_there_to_steal.py",
    "launcher/api.py": "system/client/sandbox/test_client.py",
    "durable/asking.py": "system/durable/test_sandboxes.py",
    "containers/bubblewrap.py": "system/containers/test_namespace.py",
    "launcher/commands.py": "system/client/sandbox/test_client.py",
    "durable/device_state.py": "system/durable/snapshots/test_machines.py",
    "launcher/emulator.py": "system/launcher/test_microvm.py",
    "launcher/files.py": "system/client/sandbox/test_client.py",
    "images/finishing.py": "system/images/test_debian.py",
    "images/manifest.py": "system/images/test_build.py",
    "images/parts.py": "system/images/test_build.py",
    "images/problem.py": "system/images/test_build.py",
    "images/programs.py": "system/images/test_ext4.py",
    "images/rootfs.py": "system/images/test_build.py",
    "images/spool.py": "images/test_archive.py",
    "sandbox/machine.py": "system/launcher/test_microvm.py",
    "durable/machines.py": "system/durable/test_sandboxes.py",
    "durable/microvm.py": "system/durable/snapshots/test_machines.py",
    "durable/rebinding.py": "system/durable/test_freeze.py",
    "durable/supervisor.py": "system/durable/test_sleeping.py",
    "durable/api.py": "system/durable/test_sleeping.py",
    "launcher/agent.py": "system/durable/test_freeze.py",
    "launcher/boot.py": "launcher/test_supervisor.py",
    "launcher/outbox.py": "launcher/test_stream.py",
    "launcher/operations.py": "durable/test_saving.py",
    "launcher/process.py": "system/durable/test_sandboxes.py",
    "sandbox/resources.py": "launcher/test_spec.py",
    "metadata/aws.py": "system/metadata/test_service.py",
    "metadata/handles.py": "system/metadata/test_service.py",
    "metadata/http.py": "system/metadata/test_service.py",
    "metadata/tokens.py": "system/metadata/test_service.py",
    "containers/layout.py": "system/containers/test_namespace.py",
    "containers/container.py": "system/containers/test_namespace.py",
    "containers/child.py": "system/containers/test_namespace.py",
    "containers/oci.py": "system/containers/test_namespace.py",
    "launcher/machines.py": "system/durable/test_sandboxes.py",
    "durable/paging.py": "system/durable/snapshots/test_machines.py",
    "launcher/ports.py": "system/client/sandbox/test_client.py",
    "launcher/preparing.py": "launcher/test_supervisor.py",
    "launcher/presence.py": "launcher/test_supervisor.py",
    "launcher/reporting.py": "launcher/test_supervisor.py",
    "durable/spawning.py": "system/durable/test_sandboxes.py",
    "request/request_edits.py": "request/test_exchange.py",
    "planes/mitm/adaptations.py": "system/planes/test_traps_answers.py",
    "planes/mitm/connection.py": "system/planes/test_traps_connections.py",
    "planes/mitm/destination.py": "system/planes/test_traps_parsing.py",
    "planes/mitm/admission.py": "system/planes/test_traps_parsing.py",
    "planes/mitm/backpressure.py": "system/planes/test_traps_connections.py",
    "planes/mitm/deadlines.py": "system/planes/test_traps_connections.py",
    "planes/mitm/ending.py": "system/planes/test_traps_fail_closed.py",
    "planes/mitm/final_response.py": "system/planes/test_traps_fail_closed.py",
    "planes/mitm/handshakes.py": "system/planes/test_traps_parsing.py",
    "planes/mitm/link.py": "system/planes/test_traps_connections.py",
    "planes/mitm/outbox.py": "system/planes/test_traps_fail_closed.py",
    "planes/mitm/parsers.py": "system/planes/test_http2_flow.py",
    "planes/mitm/shared.py": "system/planes/test_traps_fail_closed.py",
    "planes/mitm/upstreams.py": "system/planes/test_traps_connections.py",
    "planes/mitm/flow.py": "system/planes/mitm/test_stream.py",
    "planes/upstream/handshake.py": "exhaustive/faults/test_an_upstream_that_breaks_off_never_looks_finished.py",  # noqa: E501
    "planes/mitm/hooks.py": "system/planes/test_traps_fail_closed.py",
    "planes/mitm/http1.py": "system/planes/test_traps_parsing.py",
    "planes/mitm/layers.py": "system/planes/test_traps_connections.py",
    "planes/origins/proxy_authorization.py": "system/planes/listeners/test_listener.py",
    "planes/stock/addon.py": "system/planes/stock/test_script.py",
    "planes/stock/forwarding.py": "system/planes/stock/test_script.py",
    "planes/stock/session.py": "system/planes/stock/test_script.py",
    "planes/mitm/tls.py": "system/planes/test_traps_addresses.py",
    "planes/mitm/tls_layers.py": "system/planes/mitm/test_stream.py",
    "planes/upstream/upstream.py": "system/planes/test_traps_addresses.py",
    "planes/mitm/websocket.py": "system/planes/mitm/test_stream.py",
    "policy/checking.py": "system/cli/test_policy.py",
    "policy/diff/change.py": "policy/diff/test_rendering.py",
    "policy/file/codes.py": "policy/lint/test_lint.py",
    "policy/lint/files.py": "system/cli/test_policy_check.py",
    "policy/diff/answers.py": "policy/lint/test_requests.py",
    "local/run.py": "system/cli/test_run.py",
    "client/sandbox/process.py": "system/client/sandbox/test_client.py",
    "durable/entries.py": "durable/test_states.py",
    "state/fleet_approvals.py": "system/fleet/test_approvals.py",
    "state/replication_health.py": "system/fleet/test_follower.py",
    "state/opening.py": "state/test_restart.py",
    "sigv4/claim.py": "sigv4/test_resign.py",
    "sigv4/covered.py": "sigv4/test_resign.py",
    "sigv4/stand_in.py": "sigv4/test_resign.py",
    "secrets/vault_errors.py": "system/secrets/test_vault.py",
    "secrets/vault_token.py": "system/secrets/test_vault_login.py",
    "telemetry/audit/chain.py": "system/telemetry/audit/test_log.py",
    "telemetry/audit/file.py": "system/telemetry/audit/test_log.py",
    "telemetry/events.py": "telemetry/audit/test_record.py",
    "telemetry/metrics/pulled.py": "telemetry/metrics/test_metrics.py",
    "telemetry/metrics/table.py": "telemetry/metrics/test_metrics.py",
    "request/shared.py": "request/test_exchange.py",
    "durable/starting.py": "system/durable/test_sandboxes.py",
    "durable/warm_machine.py": "system/durable/test_pool.py",
    "cli/sandbox_keeping.py": "exhaustive/e2e/test_a_sleeping_sandbox_outlives_its_daemon.py",
    "cli/events.py": "system/control/resources/test_events.py",
    "request/audit_records.py": "request/test_exchange.py",
}

# The only places where a secret leaves its wrapper. Everything else passes a Secret on, or has no business
# with one.
MAY_REVEAL = {
    "request/known_secrets.py",  # what answers are searched for
    "request/request_edits.py",  # puts secrets in right before the first upstream byte; says what to scrub
    "secrets/",
}


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
    """Rooms import downwards only, and no file imports itself by way of others (see pyproject.toml).

    As a program: within ours it would switch off all loggers that later tests listen to.
    """
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_cycle_of_imports_is_found_and_named() -> None:
    """Also one that goes through a folder's `__init__`, and one that only type checkers see."""
    graph = ImportGraph()
    for importer, imported in (("p", "p.a"), ("p.a", "p.b"), ("p.c", "p.a")):
        graph.add_import(importer=importer, imported=imported)
    assert cycle_in(graph) == []
    graph.add_import(importer="p.b", imported="p")
    found = cycle_in(graph)
    assert found[0] == found[-1]
    assert {"p -> p.a", "p.a -> p.b", "p.b -> p"} == {" -> ".join(each) for each in pairwise(found)}


TIERS = ("", "system", "exhaustive")
"""Below tests/: what needs no daemon, what needs real components, and what takes minutes."""


def rooms() -> dict[str, set[str]]:
    """Each folder of the package, as a module, and what its docstring says that it may import."""
    said = {}
    for path in (ROOT / PACKAGE).rglob("*/__init__.py"):
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        found = re.search(r"\n\nMay import: ([^.]*)\.", doc)
        assert found, f"{path.parent} does not say what it may import"
        names = set(re.split(r",\s+", found[1])) - {"nothing"}
        said[".".join(("coatcheck", *path.parent.relative_to(ROOT / PACKAGE).parts))] = names
    return said


def test_each_room_imports_only_what_it_says() -> None:
    """`a` is another room with all its folders, `a/b` a folder of its own. Within one folder all is free."""
    said, graph = rooms(), build_graph("coatcheck", cache_dir=None)

    def home(module: str) -> str:
        while module not in said and module != "coatcheck":
            module = module.rpartition(".")[0]
        return module

    beyond = set()
    for importer in graph.modules:
        room = home(importer)
        for imported in graph.find_modules_directly_imported_by(importer):
            if room == "coatcheck" or home(imported) == room or imported == "coatcheck":
                continue
            top = imported.split(".")[1]
            name = top if top != room.split(".")[1] else "/".join(home(imported).split(".")[1:])
            if name not in said[room]:
                beyond.add(f"{importer} imports {imported}, and {room} does not say so")
    assert sorted(beyond) == []


def test_each_room_says_what_the_layers_allow() -> None:
    """What a docstring names stands below its room in the import contract, or beside it where both may."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["id"] == "layers")
    floor = {room: number for number, layer in enumerate(layers) for room in re.split(r"\s*[|:]\s*", layer)}
    wrong = []
    for module, names in rooms().items():
        room = module.split(".")[1]
        for name in {each.partition("/")[0] for each in names} - {room}:
            beside = floor[name] == floor[room] and ":" in layers[floor[room]]
            if not (floor[name] > floor[room] or beside):
                wrong.append(f"{module} says {name}")
    assert wrong == []


PROCESSES = {
    "In the daemon: ": ("coatcheck.daemon", "coatcheck.control.server"),
    "In the supervisor: ": ("coatcheck.launcher.__main__", "coatcheck.durable.__main__"),
}
"""What a docstring begins with, and the modules that such a process begins with."""
BOTH = "In daemon and supervisor: "


def test_the_files_of_a_sandbox_say_which_process_runs_them() -> None:
    """The first line says it. The imports show that it is true: no process imports what only another runs."""
    graph = build_graph("coatcheck", cache_dir=None)
    reached = {
        said: set(roots).union(*(graph.find_upstream_modules(root) for root in roots))
        for said, roots in PROCESSES.items()
    }
    wrong = []
    for module in sorted(graph.modules):
        path = ROOT / PACKAGE.parent / f"{module.replace('.', '/')}.py"
        runs = [said for said, modules in reached.items() if module in modules]
        if not (module.startswith(("coatcheck.durable.", "coatcheck.launcher.")) and path.is_file() and runs):
            continue
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        if not doc.startswith(runs[0] if len(runs) == 1 else BOTH):
            wrong.append(f"{module} runs {' and '.join(runs).lower().replace(': ', '')}")
    assert wrong == []


def has_own_test(module: Path) -> bool:
    """Whether a test file mirrors the module, in any tier."""
    name = module.with_name(f"test_{module.name}")
    return any((ROOT / "tests" / tier / name).is_file() for tier in TIERS)


def test_every_module_has_its_test_file() -> None:
    """decision/path.py has tests/decision/test_path.py; secrets/vault.py, which needs a real OpenBao, has
    tests/system/secrets/test_vault.py."""
    plain = [path for path in modules() if path.name not in ("__init__.py", "__main__.py")]
    without = {str(path) for path in plain if not has_own_test(path)}
    assert sorted(without - COVERED_BY.keys()) == []


def test_the_list_of_modules_without_a_test_file_is_true() -> None:
    """A module that is gone or has its own test leaves it, and the test that stands in for one exists."""
    known = {str(path) for path in modules()}
    needless = {name for name in COVERED_BY if name not in known or has_own_test(Path(name))}
    missing = {name for name, test in COVERED_BY.items() if not (ROOT / "tests" / test).is_file()}
    assert (sorted(needless), sorted(missing)) == ([], [])


PEM_KEY = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(\s|\\n)*(?:[A-Za-z-]+: .*\s+)*[A-Za-z0-9+/]{60}"
KEY_FILE = r"\.(?:key|p12|pfx|jks|keystore|p8|pk8|ppk)$"


def holds_a_key(content: bytes) -> bool:
    """Whether it is or holds a private key: PEM (encrypted, OpenSSH's), DER, PKCS 12, Java's store."""
    if re.search(PEM_KEY.encode(), content):
        return True
    if content[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
        return True
    if content[:1] != b"\x30":
        return False
    try:
        load_der_private_key(content, None)
    except TypeError:
        return True  # encrypted
    except (ValueError, UnsupportedAlgorithm):
        return bool(re.match(rb"\x30[\x80-\x84].{1,4}\x02\x01\x03\x30", content, re.DOTALL))  # PKCS 12
    return True


def test_no_private_key_is_in_the_tree() -> None:
    """Keys are made where they are used; one in a repository is everybody's."""
    found = [path for path in tracked() if holds_a_key((ROOT / path).read_bytes())]
    named = [path for path in tracked() if re.search(KEY_FILE, path.name)]
    assert (found, named) == ([], [])


def test_a_private_key_is_found_in_whatever_form() -> None:
    """Each that openssl, ssh-keygen or Java would write, made here."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem, der, encryption = Encoding.PEM, Encoding.DER, BestAvailableEncryption(b"pass")
    pkcs8, old, ssh = PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL, PrivateFormat.OpenSSH
    forms = [
        *(key.private_bytes(pem, form, NoEncryption()) for form in (pkcs8, old, ssh)),
        *(key.private_bytes(pem, form, encryption) for form in (pkcs8, old)),
        *(key.private_bytes(der, form, NoEncryption()) for form in (pkcs8, old)),
        key.private_bytes(der, pkcs8, encryption),
        serialize_key_and_certificates(b"name", key, None, None, NoEncryption()),
        serialize_key_and_certificates(b"name", key, None, None, encryption),
    ]
    assert [holds_a_key(form) for form in forms] == [True] * len(forms)
    assert holds_a_key(b"KEY = " + repr(forms[0].decode()).encode())  # within a program
    public = key.public_key()
    shown = [public.public_bytes(each, PublicFormat.SubjectPublicKeyInfo) for each in (pem, der)]
    assert [holds_a_key(form) for form in shown] == [False, False]


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


def test_mutants_are_made_of_every_module_that_decides() -> None:
    """What the request path imports comes first, because a run may be too short for all; and a reason why a
    mutant may live is of a module that exists."""
    order = mutation.order(ROOT / PACKAGE)
    modules = {path.stem for path in (ROOT / PACKAGE / "decision").glob("*.py")}
    assert sorted(order) == sorted(modules)
    assert order.index("form_method") < order.index("path_index") < order.index("explain")
    assert {path.stem for path in equivalent.REASONS.glob("*.txt")} <= modules
