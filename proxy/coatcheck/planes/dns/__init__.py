"""DNS for sandboxes: synthetic addresses only, nothing is forwarded."""
