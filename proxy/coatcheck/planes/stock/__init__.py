"""The compatibility mode: an addon for a stock `mitmdump -s`, which cannot hold every invariant."""
