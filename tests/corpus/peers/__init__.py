"""Other proxies under the same cases: what leaves, and what comes back, is all that is looked at."""
