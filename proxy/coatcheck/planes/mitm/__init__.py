"""The mitmproxy plane: connections, parsers, streams, and the hooks that ask for verdicts."""
