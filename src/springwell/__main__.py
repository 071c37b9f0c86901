"""Entry point of the command line. Imports happen in :func:`main`, so that Ctrl-C during them prints no traceback."""

import sys


def main() -> None:
    try:
        import os

        # Threads of OpenMP that wait by spinning take the cores from whoever else computes; torch reads this as it is imported.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import signal

        def leave(signum: int, frame: object) -> None:
            """Ends the program at once: an exception in the middle of an import may be wrapped in another, or only printed."""
            os.write(2, b"springwell: interrupted\n")
            os._exit(130)

        # A shell may have asked that a program in the background ignores Ctrl-C.
        if (python_s := signal.getsignal(signal.SIGINT)) is signal.default_int_handler:
            signal.signal(signal.SIGINT, leave)
        from springwell.app.cli import main as run

        signal.signal(signal.SIGINT, python_s)
        run()
    except KeyboardInterrupt:
        print("springwell: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
