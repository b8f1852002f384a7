"""The client's name beside the API."""

import coatcheck.control.client
import coatcheck.control_client


def test_it_is_the_same_client() -> None:
    """An `except ControlError` catches either."""
    assert coatcheck.control.client.ControlClient is coatcheck.control_client.ControlClient
    assert coatcheck.control.client.ControlError is coatcheck.control_client.ControlError
