"""In the supervisor: builds the machine that a spec describes. Imports little: a guest boots while the
rest is loaded."""

from coatcheck.durable.microvm import DurableMicroVM
from coatcheck.durable.spec import DurableSpec
from coatcheck.launcher.machines import make_machine as make_plain
from coatcheck.sandbox.machine import Machine
from coatcheck.sandbox.sandbox import Backend


def make_machine(spec: DurableSpec) -> Machine:
    """Not started. MachineError when the spec is not whole."""
    if spec.sandbox.backend is Backend.MICROVM:
        return DurableMicroVM(spec.sandbox.machine, spec.saving, spec.sandbox.directory)
    return make_plain(spec.sandbox)
