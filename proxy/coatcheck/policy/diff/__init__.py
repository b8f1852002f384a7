"""What policies mean, as sets of requests: computed from their patterns, not sampled and not read as text.

May import: policy, policy/file, platform, decision.

1. cells        the patterns of all policies cut hosts and paths into pieces that no pattern tells apart
2. answers      what a policy answers for one piece, by asking the core's own `match` about a member of it
3. sets         pieces put together again into the few lines that a reviewer reads, exactly
4. terms        under which terms the same request is allowed: limits, and how a credential is used
5. difference   two policies, side by side
6. rendering    the difference as text, Markdown and JSON
"""
