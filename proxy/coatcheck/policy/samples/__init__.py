"""Sample requests with expected verdicts: the tests of a policy.

May import: policy, policy/file, injectors, decision.
"""
