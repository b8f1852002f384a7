"""The policy linter.

May import: policy, policy/diff, policy/file, policy/samples, decision.
"""
