"""Coatcheck on one machine: `run`, `dev`, and a daemon inside the command's own process.

May import: doctor, daemon, policy, secrets, certificates, client, settings, platform, decision.
"""
