"""What the operating system and the network give: private files, processes, systemd, bounded HTTP.

May import: nothing.
"""
