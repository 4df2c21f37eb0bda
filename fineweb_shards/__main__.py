"""The program's entry point, for `fineweb-shards` and `python -m fineweb_shards` alike.

It imports next to nothing before Ctrl-C is handled: the imports of a subcommand take seconds on a slow disk, and an
interruption in the middle of them is no error.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command and return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as by `nohup … &`
        # At once, and without an exception, which modules that are being imported would catch: nothing is begun yet. A
        # subcommand has its own handler.
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from fineweb_shards.commands.main import main as run

    return run()


if __name__ == "__main__":  # workers started by `spawn` import this module again
    sys.exit(main())
