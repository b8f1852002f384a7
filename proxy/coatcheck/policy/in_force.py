"""The policies in force: read, swapped whole, and what is refused is told and changes nothing (I6)."""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from coatcheck.decision.policy import Policy
from coatcheck.platform.state_directory import StateDirectory
from coatcheck.policy import PolicyError, Problem
from coatcheck.policy.bundle.signed import Accepted, signed_policies
from coatcheck.policy.parsing import ParserFailed, PolicyParser
from coatcheck.policy.watch import PolicyWatch
from coatcheck.settings.daemon import Settings
from coatcheck.state.state import State
from coatcheck.telemetry.events import DaemonEvent, Event, PolicyEvent
from coatcheck.telemetry.metrics.metrics import Metrics


class PoliciesInForce:
    """What `settings.policy` holds, kept in `state`. Belongs to the plane's loop; readers may be anywhere.

    Files are read in a thread and parsed in a process: no request waits for either.
    """

    def __init__(
        self,
        settings: Settings,
        directory: StateDirectory,
        state: State,
        metrics: Metrics,
        tell: Callable[[Event], None],
    ) -> None:
        """PrivateFileError when the highest version seen cannot be read."""
        self._place = str(settings.policy)
        self._state = state
        self._metrics = metrics
        self._tell = tell
        self._signed = signed_policies(settings.policy_trust_root, directory.path)
        self._parser = PolicyParser(serving=False)
        self._watch = PolicyWatch(settings.policy, signed=self._signed, parse=self._parser)
        self._watching = asyncio.Lock()
        self._asked: asyncio.Future[bool] | None = None
        """For all callers since the reload under way began, when it may have read already."""
        self._reloading: asyncio.Task[None] | None = None
        self.last_refused = ""
        """Why the files that lie there now are not in force; empty when they are."""
        self._may_observe = settings.policy_observe or ""
        self._told = ""
        """The digest of the bundle that was told of last."""
        metrics.pulled.policy_refused = lambda: bool(self.last_refused)
        metrics.pulled.bundle_version = lambda: self.bundle.bundle.version if self.bundle else None

    @property
    def bundle(self) -> Accepted | None:
        """The signed bundle in force; None where policies need no signature."""
        return self._signed.accepted if self._signed is not None else None

    def load(self) -> None:
        """The first time. PolicyError and OSError: a daemon does not start on a bad policy."""
        self._install(self._read())
        self._parser.serving = True

    async def reload(self) -> bool:
        """Read the policies again. A bad one changes nothing: the old ones stay, loudly (I6).

        Three hundred signals at once are two reloads: the one under way, and one for all the others.
        """
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        asked = self._asked
        if self._reloading is None:
            self._reloading = asyncio.create_task(self._reload_all())
        return await asyncio.shield(asked)

    async def _reload_all(self) -> None:
        try:
            await asyncio.sleep(0)  # all that ask in the same turn of the loop have the same reload
            while self._asked is not None:
                asked, self._asked = self._asked, None
                try:
                    asked.set_result(await self._reload())
                except BaseException as error:
                    asked.set_exception(error)
                    raise
        finally:
            self._reloading = None

    async def _reload(self) -> bool:
        try:
            async with self._watching:
                policies = await asyncio.to_thread(self._read)
        except Exception as error:  # noqa: BLE001 - also of a fault of ours the owner must hear, where they look
            why = str(error)
            if not isinstance(error, PolicyError | ParserFailed | OSError):
                why = f"it could not be read, by a fault of Coatcheck's ({type(error).__name__}): report it"
            if why != self.last_refused:  # told once, not once a second
                self.last_refused = why
                self._tell(PolicyEvent(time.time(), self._place, "", False, why))
            return False
        self.last_refused = ""
        self._install(policies)
        return True

    async def look(self) -> None:
        """Read them if they changed. Call it about once a second."""
        async with self._watching:
            due = await asyncio.to_thread(self._watch.due)
        if due:
            await self.reload()

    def _read(self) -> Mapping[str, Policy]:
        policies = self._watch.read()
        if not self._may_observe:
            forbid_observing(policies)
        for policy in policies.values():
            for credential in policy.credentials.values():
                for injector in credential.injectors:
                    injector.prepare()
        return policies

    def _install(self, policies: Mapping[str, Policy]) -> None:
        for policy in policies.values():
            old = self._state.policies.get(policy.name)
            if old is None or old.sha256 != policy.sha256:
                self._tell(PolicyEvent(time.time(), policy.name, policy.sha256, True, policy.owner))
                if policy.observe is not None:
                    until = datetime.fromtimestamp(policy.observe.until, UTC)
                    why = f"policy {policy.name} until {until:%Y-%m-%d}: {policy.observe.reason}"
                    self._tell(DaemonEvent(time.time(), "observing", f"{why}; {self._may_observe}"))
        accepted = self.bundle
        if accepted is not None and accepted.bundle.digest != self._told:
            self._told = accepted.bundle.digest
            what = f"version {accepted.bundle.version} of {accepted.bundle.owner}, signed by {accepted.key}"
            self._tell(DaemonEvent(time.time(), "policy_bundle", f"{what}, digest {self._told}"))
        self._state.swap_policies(policies)
        self._metrics.pulled.policies_in_force({p.name: p.sha256 for p in policies.values()})


def forbid_observing(policies: Mapping[str, Policy]) -> None:
    """PolicyError when one of them would let pass what no rule allows (I6): a file alone cannot want that."""
    problems = [
        Problem(
            0,
            0,
            "it says `observe`, and this daemon may not",
            "remove it, or set COATCHECK_POLICY_OBSERVE to the reason why sandboxes here may reach any host",
            file=f"{name}.yaml",
        )
        for name, policy in policies.items()
        if policy.observe is not None
    ]
    if problems:
        raise PolicyError(problems)
