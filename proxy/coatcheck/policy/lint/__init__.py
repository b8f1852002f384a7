"""The policy linter."""
