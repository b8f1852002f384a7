"""Dialling upstreams: names resolved and screened here, TLS verified, parent proxies."""
