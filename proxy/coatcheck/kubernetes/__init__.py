"""Coatcheck inside Kubernetes: the sidecar, and the admission webhook that injects it."""
