"""A machine on disk: what it had in memory, its devices, its overlay, and a signed list of their digests.

May import: containers, sandbox, decision, platform.
"""
