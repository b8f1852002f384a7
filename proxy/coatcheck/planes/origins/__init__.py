"""What proves which sandbox a connection belongs to, beyond its listener.

May import: platform, decision.
"""
