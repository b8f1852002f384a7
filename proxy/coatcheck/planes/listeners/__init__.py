"""Listening sockets: who may connect, how many and how fast, and what a connection proves by itself."""
