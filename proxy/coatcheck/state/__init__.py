"""The one mutable thing: live sessions, their handles, the policies in force, and what survives a crash.

May import: telemetry, platform, decision.

`State` is what the rest uses; `Clock` gives the time that it judges by, `Buckets` the rate limits.
"""

from coatcheck.state.buckets import Buckets
from coatcheck.state.clock import Clock
from coatcheck.state.database import IssuedHandle, Status
from coatcheck.state.errors import Problem, StateError
from coatcheck.state.issued import MintedHandle
from coatcheck.state.sessions import NewSession, Sessions, StateSettings
from coatcheck.state.state import State

__all__ = [
    "Buckets",
    "Clock",
    "IssuedHandle",
    "MintedHandle",
    "NewSession",
    "Problem",
    "Sessions",
    "State",
    "StateError",
    "StateSettings",
    "Status",
]
