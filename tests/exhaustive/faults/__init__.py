"""Faults: what breaks around the daemon, and in it. One sentence a file, real parts throughout."""
