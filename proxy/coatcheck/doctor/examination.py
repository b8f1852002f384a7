"""All checks, in the order in which one mistake hides the next."""

from pathlib import Path

from coatcheck.decision.policy import Policy
from coatcheck.doctor import clients, control, files, fleet, machine, machines, network, secrets
from coatcheck.doctor.finding import Check, Finding, Level, Subject, problem
from coatcheck.settings.daemon import Settings, process_environment
from coatcheck.settings.explained import SettingsProblem, load_settings

CHECKS: tuple[Check, ...] = (
    machine.versions,
    machine.memory,
    machine.open_files,
    files.state_directory,
    files.certificate_authority,
    files.policy,
    files.public_suffixes,
    files.wall_clock,
    network.surroundings,
    network.allowed_networks,
    network.ports,
    control.control_socket,
    fleet.shared_state,
    secrets.stores,
    clients.trust,
    machines.namespaces,
    machines.containers,
    machines.microvms,
)


def examine(control_socket: Path | None = None, state_dir: Path | None = None) -> list[Finding]:
    """Everything that was found, good and bad. Settings that cannot be read are the only finding."""
    try:
        settings = load_settings(state_dir=state_dir)
    except SettingsProblem as error:
        return [*_alone(), *problem("settings", str(error), error.hint)]
    subject = Subject(
        settings,
        process_environment(),
        control_socket or settings.control,
        _policies(settings),
        control.daemon_pid(control_socket or settings.control),
    )
    found = [Finding("settings", Level.OK, "they can be read")]
    for check in CHECKS:
        found += check(subject)
    return found


def _alone() -> list[Finding]:
    return machine.versions()


def _policies(settings: Settings) -> dict[str, Policy]:
    found = files.read_policies(settings)
    return found if isinstance(found, dict) else {}


__all__ = ["CHECKS", "Finding", "Level", "examine"]
