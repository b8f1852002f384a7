"""From a spec to the machine that it asks for. Imports little: a guest boots while the rest is loaded."""

from coatcheck.launcher.machine import Machine, MachineError
from coatcheck.launcher.microvm import MicroVM
from coatcheck.launcher.namespace import NamespaceMachine
from coatcheck.launcher.sandbox import Backend
from coatcheck.launcher.spec import SupervisorSpec


def make_machine(spec: SupervisorSpec) -> Machine:
    """Not started. MachineError when the spec is not whole."""
    if spec.backend is Backend.MICROVM:
        return MicroVM(spec.machine, spec.directory)
    if spec.agent is None:
        raise MachineError("a namespace sandbox was asked for without an agent")
    return NamespaceMachine(spec.machine, spec.directory, agent=spec.agent, nests=spec.filesystem is not None)
