"""A policy file: read strictly, validated, reviewed and compiled.

May import: injectors, platform, decision.
"""
