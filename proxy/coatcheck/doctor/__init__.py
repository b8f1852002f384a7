"""`coatcheck doctor`: the likeliest set-up mistakes, each found by a small function.

May import: fleet, durable, containers, sandbox, images, policy, certificates, secrets, state, settings,
decision, platform.

`examination` runs them; the other files hold them, by where they look. None changes anything, and none
says more of a secret than whether it can be used.
"""
