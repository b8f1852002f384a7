"""The deprecated names of what is in `coatcheck.client.frameworks`.

May import: client.
"""
