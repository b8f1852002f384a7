"""What can go wrong when an image is made or used."""


class ImageError(Exception):
    """An image cannot be built, found or used. `hint` says what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
