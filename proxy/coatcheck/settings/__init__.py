"""The daemon's settings: one model, read from the environment and one file.

May import: platform, decision.
"""
