"""Errors that a user can mend. The command line prints their message as one line and exits with code 2."""


class UserError(ValueError):
    """A value that cannot be used; the message names it and says what would work."""


class InterruptionError(RuntimeError):
    """Work that was interrupted and saved; the same command goes on."""


class DivergenceError(RuntimeError):
    """Training or sampling ran away; the message says what happened, at which level, and what to try."""
