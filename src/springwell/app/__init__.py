"""The command line and everything that knows a Config."""
