"""Signed policy bundles and the keys that they are checked with."""
