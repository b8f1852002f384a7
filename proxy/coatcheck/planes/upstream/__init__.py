"""Dialling upstreams: names resolved and screened here, parent proxies, a bound on the TLS handshake.

May import: planes, platform, decision.
"""
