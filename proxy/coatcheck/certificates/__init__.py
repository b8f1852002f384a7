"""The certificate authority that sandboxes trust, the leaves it signs, and what each client must be told.

May import: platform, decision.
"""
