"""`make demo`: real clients in a sandbox without secrets, six attacks, and an agent inside a microVM.

Not part of the installed package: it needs the development dependencies. `upstreams/` holds the servers that
stand in for model APIs and a Git host; the tests use them too. `inside/` has programs that sandboxes run.
"""
