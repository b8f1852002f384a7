"""Clients of the control API: sessions, sandboxes, and adapters for agent frameworks.

May import: platform.
"""
