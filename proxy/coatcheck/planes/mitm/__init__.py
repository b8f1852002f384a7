"""The mitmproxy plane: connections, TLS, HTTP parsers and streams; they ask `request` for every verdict."""
