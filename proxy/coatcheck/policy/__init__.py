"""YAML bytes of a security team -> strict frozen models -> `decision.policy` values.

May import: policy/bundle, policy/file, policy/samples, injectors, state, telemetry, settings, platform,
decision.

`file` reads one policy file, `lint` finds what should not be merged, `samples` runs a policy's tests,
`diff` compares policies as sets of requests, `bundle` signs them. `watch` notices changed files, `in_force`
swaps the policies of a running daemon, and `shadow` judges candidates beside them. `replay` and `learn` read
audit logs.
"""

from coatcheck.policy.editor_schema import policy_schema, samples_schema
from coatcheck.policy.file.loading import CheckedPolicy, check_policy, load_directory, load_file, load_policy
from coatcheck.policy.file.problem import Level, PolicyError, Problem
from coatcheck.policy.samples.samples import Sample, read_samples
from coatcheck.policy.samples.trial import Failure, run_samples

__all__ = [
    "CheckedPolicy",
    "Failure",
    "Level",
    "PolicyError",
    "Problem",
    "Sample",
    "check_policy",
    "load_directory",
    "load_file",
    "load_policy",
    "policy_schema",
    "read_samples",
    "run_samples",
    "samples_schema",
]
