"""Coatcheck: a credential-injecting egress proxy for AI-agent sandboxes."""

__version__ = "0.1.0"
