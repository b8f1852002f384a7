"""What takes too long for `make test`: `make hard`. Each part writes what it found to docs/hard/."""
