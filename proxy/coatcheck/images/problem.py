"""What can go wrong when an image is made or used."""

from coatcheck.platform.errors import CoatcheckError


class ImageError(CoatcheckError):
    """An image cannot be built, found or used. `hint` says what to do next."""
