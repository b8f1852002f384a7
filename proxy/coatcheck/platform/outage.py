"""What is wrong for a while is logged when it begins, changes or ends, not each time it is noticed."""


class Outage:
    """`if outage.noticed(why): log it`; `if outage.over(): log that it works again`."""

    def __init__(self) -> None:
        self.why: str | None = None
        """What is wrong; None while nothing is."""

    def noticed(self, why: str = "") -> bool:
        """It is wrong. True when it was not before, or for another reason."""
        known, self.why = self.why, why
        return why != known

    def over(self) -> bool:
        """It works. True when it did not before."""
        known, self.why = self.why, None
        return known is not None
