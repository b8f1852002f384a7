"""Listening sockets, and the first bytes of a connection."""
