"""Stand-ins for upstreams: model APIs, a Git host, a hostile server. The demo and the tests both use them."""
