"""Entry point of the command line. Imports happen in :func:`main`, so that Ctrl-C during them prints no traceback."""

import sys


def main() -> None:
    try:
        from springwell.app.cli import main as run

        run()
    except KeyboardInterrupt:
        print("springwell: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
