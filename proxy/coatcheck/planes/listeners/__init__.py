"""Listening sockets: who may connect, how many and how fast, and what a connection alone proves.

May import: planes, planes/dns, planes/mitm, planes/origins, planes/upstream, decision.
"""
