"""What is shipped for people to start with: the repository's `policies/default.yaml`, word for word.

May import: nothing.
"""

from pathlib import Path

POLICY = Path(__file__).parent / "default.yaml"
