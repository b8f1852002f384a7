"""The control API: aiohttp, `/v1/…`, one resource a file. Never reachable through the proxy."""
