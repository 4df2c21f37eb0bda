"""The program's entry point, for `fineweb-shards` and `python -m fineweb_shards` alike.

It imports next to nothing before it handles Ctrl-C: on a slow disk the imports of a subcommand take seconds, and an
interruption during them is not an error.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command and return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored, as by `nohup … &`
        # Exit at once, because nothing has begun; modules being imported might catch an exception. Subcommands have
        # their own handlers.
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from fineweb_shards.commands.main import main as run

    return run()


if __name__ == "__main__":  # workers started by `spawn` import this module again
    sys.exit(main())
