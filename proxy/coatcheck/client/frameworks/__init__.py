"""What agent frameworks need to use our sandboxes. Each module needs its framework, which we do not bring.

May import: client, client/sandbox.
"""
