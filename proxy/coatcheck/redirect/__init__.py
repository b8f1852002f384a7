"""Transparent mode's rules: a sandbox's connections are led to our listener, and nothing else leaves it.

May import: platform.

`plan` holds the values, `nftables`, `iptables` and `routes` make text of them, `applying` runs the tools.
"""
