"""The webhook that puts a proxy into each pod of some namespaces, and refuses pods that could get past it.

May import: certificates, platform.
"""
