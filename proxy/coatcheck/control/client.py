"""The control API's client, for those who may import `control`; launchers take `coatcheck.control_client`."""

from coatcheck.control_client import ControlClient, ControlError

__all__ = ["ControlClient", "ControlError"]
