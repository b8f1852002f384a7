"""Sandboxes: computers whose only way out is Coatcheck. Speaks to the daemon only through the control API."""
