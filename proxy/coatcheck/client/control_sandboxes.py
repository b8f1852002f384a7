"""The control API's calls about sandboxes, for `ControlClient`."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

type Answer = dict[str, Any]
"""As docs/control-api.md describes it. It may hold handles: do not log it."""
type Answers = list[Answer]

KEEPING_SECONDS: Final = 400.0
"""Where a sandbox's memory is written or read: the daemon gives itself six minutes."""


class SandboxCalls:
    """Each raises ControlError, as the rest of the client does."""

    def create_sandbox(self, **wanted: Any) -> Answer:
        """The sandbox, starting. `wanted` as docs/control-api.md names it: tenant, subject, policy, …"""
        made: Answer = self._post("/v1/sandboxes", wanted)["sandbox"]
        return made

    def sandboxes(self, *, state: str | None = None) -> Answers:
        """All sandboxes that the caller may see, by id; those that ended are kept for a while."""
        query = f"?{urlencode({'state': state})}" if state is not None else ""
        listed: Answers = self._call("GET", f"/v1/sandboxes{query}")["sandboxes"]
        return listed

    def sandbox(self, sandbox: str, wait_seconds: int = 0) -> Answer:
        """It as it is now, or once it no longer starts, after `wait_seconds` (at most 20) at the latest."""
        shown: Answer = self._call("GET", f"{_sandbox(sandbox)}?wait_seconds={wait_seconds}")["sandbox"]
        return shown

    def kill_sandbox(self, sandbox: str, why: str | None = None) -> Answer:
        """It as it ended. Its sessions are over; state `ending` if it takes longer than 20 s to be gone."""
        return self._changed(sandbox, "kill", {"why": why})

    def pause_sandbox(self, sandbox: str) -> Answer:
        return self._changed(sandbox, "pause")

    def resume_sandbox(self, sandbox: str) -> Answer:
        return self._changed(sandbox, "resume")

    def scale_sandbox(self, sandbox: str, memory_mib: int | None = None, cpus: int | None = None) -> Answer:
        """Another size while it runs; what is left out stays: `memory_mib` and `cpus` as they are now."""
        return self._post(f"{_sandbox(sandbox)}/scale", {"memory_mib": memory_mib, "cpus": cpus})

    def size_sandbox(self, sandbox: str, memory_mib: int, cpus: int, by: str) -> Answer:
        """For its supervisor: what it counts for from now on. ControlError when there is no room for that."""
        said = {"memory_mib": memory_mib, "cpus": cpus, "by": by}
        sized: Answer = self._post(f"{_sandbox(sandbox)}/size", said)["sandbox"]
        return sized

    def events(self, after: int | None = None, sandbox: str | None = None, wait_seconds: int = 0) -> Answer:
        """`{events, next, missed}`: what happened to sandboxes after that number; None: from now on."""
        asked = {"after": after, "sandbox": sandbox, "wait_seconds": wait_seconds}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return self._call("GET", f"/v1/events?{query}")

    def take_snapshot(self, sandbox: str, name: str) -> Answer:
        """Save it under a name; it goes on. Answered when it is on the disk."""
        asked = {"name": name}
        taken: Answer = self._post(f"{_sandbox(sandbox)}/snapshots", asked, KEEPING_SECONDS)["snapshot"]
        return taken

    def snapshots(self, sandbox: str) -> Answers:
        """What was saved of it, the oldest first."""
        listed: Answers = self._call("GET", f"{_sandbox(sandbox)}/snapshots")["snapshots"]
        return listed

    def remove_snapshot(self, sandbox: str, name: str) -> Answers:
        """The others."""
        path = f"{_sandbox(sandbox)}/snapshots/{quote(name, safe='')}"
        left: Answers = self._call("DELETE", path)["snapshots"]
        return left

    def fork_sandbox(self, sandbox: str, count: int = 1, snapshot: str | None = None) -> Answers:
        """Copies with sessions of their own, once they run; of a snapshot, or as it is."""
        asked = {"count": count, "snapshot": snapshot}
        made: Answers = self._post(f"{_sandbox(sandbox)}/fork", asked, KEEPING_SECONDS)["sandboxes"]
        return made

    def restore_sandbox(self, sandbox: str, snapshot: str | None = None) -> Answer:
        """It goes on from a snapshot (the newest), whatever became of it since."""
        return self._changed(sandbox, "restore", {"snapshot": snapshot})

    def sleep_sandbox(self, sandbox: str) -> Answer:
        return self._changed(sandbox, "sleep")

    def wake_sandbox(self, sandbox: str) -> Answer:
        return self._changed(sandbox, "wake")

    def inspect_sandbox(self, sandbox: str) -> Answer:
        """Begin the search of a sandbox for secrets; how far it is, as `inspection` says it."""
        return self._post(f"{_sandbox(sandbox)}/inspect", {})

    def inspection(self, sandbox: str) -> Answer:
        """`{state, ended, searched_bytes, problem, signed, …}` of its last inspection."""
        return self._call("GET", f"{_sandbox(sandbox)}/inspect")

    def cancel_inspection(self, sandbox: str) -> Answer:
        """The same, once the sandbox runs again."""
        return self._post(f"{_sandbox(sandbox)}/inspect/cancel", {})

    def report_sandbox(self, sandbox: str, state: str, ending: str | None = None, detail: str = "") -> Answer:
        """For supervisors: how it is. Renews the leases of its sessions."""
        said = {"state": state, "ending": ending, "detail": detail}
        reported: Answer = self._post(f"{_sandbox(sandbox)}/report", said)["sandbox"]
        return reported

    def may_save_sandbox(self, sandbox: str) -> Answer:
        """For supervisors: refused when policy lets nobody save it any more."""
        asked: Answer = self._post(f"{_sandbox(sandbox)}/may-save", {})["sandbox"]
        return asked

    def _changed(self, sandbox: str, how: str, asked: Mapping[str, Any] | None = None) -> Answer:
        now: Answer = self._post(f"{_sandbox(sandbox)}/{how}", asked or {}, KEEPING_SECONDS)["sandbox"]
        return now

    @abstractmethod
    def _post(self, path: str, asked: Mapping[str, Any], seconds: float | None = None) -> Answer: ...

    @abstractmethod
    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        unwell: bool = False,
        seconds: float | None = None,
    ) -> Answer: ...


def _sandbox(sandbox: str) -> str:
    return f"/v1/sandboxes/{quote(sandbox, safe='')}"
