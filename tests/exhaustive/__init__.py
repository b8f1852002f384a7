"""What takes minutes: every fault, every kill, every check switched off, whole packages and images."""
