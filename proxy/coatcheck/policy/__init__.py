"""YAML bytes of a security team -> strict frozen models -> `decision.policy` values.

May import: policy/bundle, policy/file, policy/samples, injectors, state, telemetry, settings, platform,
decision.

1. reading    bytes -> plain data, every value with its line and column
2. fields     one text -> one decision value, or what is wrong with it and what to write instead
3. models     what a file may hold; editor_schema: the same, for editors that complete and explain it
4. review     what only shows when parts are seen together: credentials nobody can tell apart, hosts
              that no rule allows, tunnels that would carry secrets
5. building   models -> Policy
6. loading    all of it in one call, for one file or a directory of files, all or nothing
7. samples    requests with the answers that their authors expect
8. lint       what loads and should still not be merged as it is
9. meaning    policies as sets of requests, and what changes between two of them

Nothing here logs, watches or swaps: a caller keeps its old policies when `PolicyError` comes.
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
