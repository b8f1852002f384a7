"""Real components: a daemon, a sandbox, or a program that is not ours."""
