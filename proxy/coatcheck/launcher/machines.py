"""In the supervisor: builds the machine that a spec describes. Imports little: a guest boots while the
rest is loaded."""

from coatcheck.containers.container import ContainerMachine
from coatcheck.launcher.microvm import MicroVM
from coatcheck.launcher.spec import SupervisorSpec
from coatcheck.sandbox.machine import Machine, MachineError
from coatcheck.sandbox.sandbox import Backend


def make_machine(spec: SupervisorSpec) -> Machine:
    """Not started. MachineError when the spec is not whole."""
    if spec.backend is Backend.MICROVM:
        return MicroVM(spec.machine, spec.directory)
    if spec.agent is None:
        raise MachineError("a namespace sandbox was asked for without an agent")
    return ContainerMachine(spec.machine, spec.directory, agent=spec.agent, nests=spec.filesystem is not None)
