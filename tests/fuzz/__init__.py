"""Generated input against what holds for all input: a short look in `make test`, long ones in `make hard`."""
