"""A policy file: read strictly, validated, reviewed and compiled."""
