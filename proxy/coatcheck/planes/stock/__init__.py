"""The compatibility mode for a stock `mitmdump -s`."""
