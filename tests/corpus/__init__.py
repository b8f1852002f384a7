"""The corpus: attacks as data, and what must be true after each. README.md says how to read and run it."""
