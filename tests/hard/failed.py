"""What a part of `make hard` raises: apart from `__main__`, which is loaded twice when parts import it."""


class Failed(Exception):
    """Something was found that must not be. Its text is the result, as Markdown, all the same."""
