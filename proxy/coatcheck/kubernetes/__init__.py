"""Coatcheck inside Kubernetes: the sidecar, and the admission webhook that injects it.

May import: local, planes, secrets, certificates, client, settings, platform.
"""
