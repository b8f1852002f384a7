"""The metadata service: what a sandbox finds at 169.254.169.254, answered on the host for its own sessions.

May import: client, decision.
"""
