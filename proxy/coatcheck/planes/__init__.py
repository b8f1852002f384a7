"""Where traffic enters. A plane translates foreign types to `decision.message` and back; it never decides."""
