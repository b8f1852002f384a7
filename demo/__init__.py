"""`coatcheck demo`, and the real servers that it and the tests talk to: model APIs and a git host."""
