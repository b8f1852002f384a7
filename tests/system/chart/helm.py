"""The real Helm engine, in a process of its own: its Go runtime is none of pytest's business.

`python -m tests.system.chart.helm` answers lines of JSON: `{"lint": true}`, or `{"values": …}`, which
installs the chart in a cluster that is made for it (and upgrades it, `then`) and says what is in there
afterwards.
"""

import asyncio
import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.system.chart.cluster import Json, cluster

CHART = Path(__file__).parent.parent.parent.parent / "charts/coatcheck"
RELEASE, NAMESPACE = "cc", "coatcheck"


class HelmRefused(Exception):
    """Helm did not install the chart: values that do not fit it, or what its templates say."""


@dataclass(frozen=True, slots=True)
class Objects:
    """What an installation made."""

    by_path: Mapping[str, Json]
    notes: str = ""
    """What helm prints for the operator."""
    tests: tuple[Json, ...] = ()
    """The pods of `helm test`."""

    def of(self, kind: str, name: str | None = None, namespace: str = NAMESPACE) -> Json:
        """The one object of this kind (and name), or AssertionError."""
        found = self.all(kind, namespace)
        wanted = [each for each in found if name is None or each["metadata"]["name"] == name]
        assert len(wanted) == 1, f"{kind} {name}: {[each['metadata']['name'] for each in found]}"
        return wanted[0]

    def all(self, kind: str, namespace: str | None = None) -> list[Json]:
        return [
            each
            for each in self.by_path.values()
            if each["kind"] == kind and namespace in (None, each["metadata"].get("namespace", NAMESPACE))
        ]


@dataclass(frozen=True, slots=True)
class Helm:
    process: "subprocess.Popen[str]" = field(repr=False)
    known: dict[str, Objects] = field(default_factory=dict, repr=False)

    def lint(self) -> list[Json]:
        """Its messages; HelmRefused when it finds an error."""
        messages: list[Json] = self._ask({"lint": True})["messages"]
        return messages

    def install(self, values: Mapping[str, Any]) -> Objects:
        """What the chart makes of `values`; HelmRefused says what it has against them."""
        asked = json.dumps({"values": values}, sort_keys=True)
        if asked not in self.known:
            answer = self._ask({"values": dict(values)})
            self.known[asked] = Objects(answer["objects"], answer["notes"], tuple(answer["tests"]))
        return self.known[asked]

    def upgrade(self, values: Mapping[str, Any], then: Mapping[str, Any]) -> tuple[Objects, Objects]:
        """What is there after an installation, and after an upgrade to other values."""
        answer = self._ask({"values": dict(values), "then": dict(then)})
        return Objects(answer["before"]), Objects(answer["objects"])

    def _ask(self, asked: Json) -> Json:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: Json = json.loads(self.process.stdout.readline())
        if "refused" in answer:
            raise HelmRefused(answer["refused"])
        return answer


@contextmanager
def running_helm() -> Iterator[Helm]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.system.chart.helm"],
        cwd=CHART.parent.parent,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        # Releases are kept in memory: the cluster is asked for the chart's own objects only.
        env={**os.environ, "HELM_DRIVER": "memory"},
    )  # fmt: skip
    try:
        yield Helm(process)
    finally:
        process.kill()
        process.communicate()


def _answer(asked: Json) -> Json:
    import helm_sdkpy

    with cluster() as made:
        configuration = helm_sdkpy.Configuration(namespace=NAMESPACE, kubeconfig=made.kubeconfig)
        try:
            if "lint" in asked:
                said = asyncio.run(helm_sdkpy.Lint(configuration).run(str(CHART)))
                return {"messages": said["Messages"]} if not said["Errors"] else {"refused": str(said)}
            install = helm_sdkpy.Install(configuration)
            said = asyncio.run(install.run(RELEASE, str(CHART), values=asked["values"], wait=False))
            before = copy.deepcopy(made.objects)
            if "then" in asked:
                upgrade = helm_sdkpy.Upgrade(configuration)
                asyncio.run(upgrade.run(RELEASE, str(CHART), values=asked["then"], wait=False))
        except helm_sdkpy.HelmError as error:
            return {"refused": str(error)}
        if made.unknown:
            return {"refused": f"the cluster has no answer to {made.unknown}"}
        tests = [YAML(typ="safe", pure=True).load(each["manifest"]) for each in said["hooks"]]
        return {"objects": made.objects, "before": before, "notes": said["info"]["notes"], "tests": tests}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)
