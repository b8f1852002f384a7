"""The values of one sandbox: what it has, what it may take, its states, and why it cannot be had or used.

May import: settings, platform, decision.
"""
