"""deploy/containers/compose.yaml says what pod.yaml says, which tests/exhaustive/deploy runs."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

CONTAINERS = Path(__file__).parents[3] / "deploy/containers"
COMPOSE: Any = YAML(typ="safe", pure=True).load(CONTAINERS / "compose.yaml")
SPEC: Any = YAML(typ="safe", pure=True).load(CONTAINERS / "pod.yaml")["spec"]
PAIRS = {"redirect": "redirect", "coatcheck": "proxy", "agent": "agent"}
"""Service -> container."""


def container(name: str) -> Any:
    [found] = [each for each in (*SPEC["initContainers"], *SPEC["containers"]) if each["name"] == name]
    return found


def test_proxy_and_redirect_run_the_same_commands() -> None:
    """With the same settings, but for where Vault and its token are."""
    for service in ("redirect", "coatcheck"):
        assert COMPOSE["services"][service]["command"] == container(PAIRS[service])["args"]
    settings = {each["name"]: each["value"] for each in container("proxy")["env"]}
    given = COMPOSE["services"]["coatcheck"]["environment"]
    assert given.keys() == settings.keys()
    assert {name for name in given if given[name] != settings[name]} == {
        "COATCHECK_VAULT_URL",
        "COATCHECK_VAULT_TOKEN_FILE",
    }


def test_users_and_capabilities_are_the_same() -> None:
    """Only the redirect has a capability; the agent is neither root nor the proxy's user."""
    for service, name in PAIRS.items():
        said, security = COMPOSE["services"][service], container(name)["securityContext"]
        assert int(said["user"].partition(":")[0]) == security["runAsUser"]
        assert said["cap_drop"] == security["capabilities"]["drop"] == ["ALL"]
        assert said.get("cap_add", []) == security["capabilities"].get("add", [])
        assert said["security_opt"] == ["no-new-privileges:true"]
        assert security["allowPrivilegeEscalation"] is False
    users = {service: COMPOSE["services"][service]["user"] for service in PAIRS}
    assert len(set(users.values())) == 3


def test_the_volumes_are_the_proxys_before_anything_else_mounts_them() -> None:
    """podman gives them to the user who mounts them first, docker to root."""
    first = SPEC["initContainers"][0]
    assert first["securityContext"]["runAsUser"] == container("proxy")["securityContext"]["runAsUser"]
    assert {each["name"] for each in first["volumeMounts"]} == {"state", "workload"}
    proxy = COMPOSE["services"]["coatcheck"]
    assert proxy["depends_on"] == {"volumes": {"condition": "service_completed_successfully"}}
    assert COMPOSE["services"]["volumes"]["entrypoint"][:2] == ["chown", proxy["user"]]


def test_the_agent_shares_the_network_and_begins_last() -> None:
    """Behind rules that are in force and a session that is open; what it gets it cannot change."""
    agent = COMPOSE["services"]["agent"]
    assert agent["network_mode"] == COMPOSE["services"]["redirect"]["network_mode"] == "service:coatcheck"
    assert {name: each["condition"] for name, each in agent["depends_on"].items()} == {
        "coatcheck": "service_healthy",
        "redirect": "service_completed_successfully",
    }
    assert agent["volumes"] == ["workload:/run/coatcheck:ro"]
