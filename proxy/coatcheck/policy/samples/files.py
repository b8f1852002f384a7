"""The samples beside a policy: `samples/NAME.yaml`, `samples/NAME/{allowed,refused}_*.yaml`, and tried."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coatcheck.policy.checking import in_file, load_file, read_bytes
from coatcheck.policy.file.problem import PolicyError, Problem
from coatcheck.policy.samples.samples import Sample, read_samples
from coatcheck.policy.samples.trial import Trial, try_sample

SAMPLES = "samples"
"""The directory beside policies that holds samples; a policy directory itself is not read deeper."""


@dataclass(frozen=True, slots=True)
class FileTest:
    """One policy's samples, tried. Without any it is not `ok`: untested is not tested."""

    path: Path
    where: Path
    trials: tuple[tuple[Path, Trial], ...]
    """Each with the file that its sample stands in."""
    rules: tuple[str, ...]
    """All rules of which samples can be written: no tunnels, in which no request is seen."""

    @property
    def ok(self) -> bool:
        return bool(self.trials) and not any(trial.failure for _, trial in self.trials)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Rules that allow no sample that must be allowed."""
        shown = {trial.rule for _, trial in self.trials if trial.reason is None and not trial.failure}
        return tuple(rule for rule in self.rules if rule not in shown)

    def as_json(self) -> dict[str, Any]:
        failures = [trial.failure for _, trial in self.trials if trial.failure]
        return {
            "file": str(self.path),
            "ok": self.ok,
            "samples": len(self.trials),
            "failures": [
                {"sample": failure.sample, "expected": failure.expected, "got": failure.got}
                for failure in failures
            ],
            "rules": len(self.rules),
            "uncovered": list(self.uncovered),
        }


def try_path(path: Path, samples: Path | None = None) -> Iterator[FileTest]:
    """Try the samples of each policy, or those of `samples`. Raises PolicyError for a bad policy or bad
    samples, OSError."""
    for file in sorted(path.glob("*.yaml")) if path.is_dir() else [path]:
        policy = load_file(file)
        where = samples or file.parent / SAMPLES / file.name
        found = _read(where) if samples is not None else samples_beside(file)
        trials = tuple((source, try_sample(policy, sample)) for source, sample in found or ())
        rules = tuple(rule.name for rule in policy.rules if not rule.tunnel)
        yield FileTest(file, where, trials, rules)


def samples_beside(policy: Path) -> list[tuple[Path, Sample]] | None:
    """All samples of the policy file, each with its own file; None when there is no place for them.

    Raises PolicyError, OSError.
    """
    directory = policy.parent / SAMPLES
    listed, folder = directory / policy.name, directory / policy.stem
    if not listed.is_file() and not folder.is_dir():
        return None
    found = _read(listed) if listed.is_file() else []
    for file in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
        found += _read(file, _expected(file))
    return found


def _expected(file: Path) -> Literal["allow", "deny"]:
    if file.name.startswith("allowed_"):
        return "allow"
    if file.name.startswith("refused_"):
        return "deny"
    message = "the file name does not say which verdict these samples expect"
    raise PolicyError([Problem(1, 1, message, "call it allowed_….yaml or refused_….yaml", file=str(file))])


def _read(file: Path, expect: Literal["allow", "deny"] | None = None) -> list[tuple[Path, Sample]]:
    try:
        return [(file, sample) for sample in read_samples(read_bytes(file), expect)]
    except PolicyError as error:
        raise in_file(error, file) from None
