"""The mitmproxy plane: connections, TLS, HTTP parsers and streams; they ask `request` for every verdict.

May import: planes, planes/origins, planes/upstream, request, certificates, decision.
"""
