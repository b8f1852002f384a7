"""Sample requests with expected verdicts: the tests of a policy."""
