"""`python -m fineweb_shards` is the same command as `fineweb-shards`."""

import sys

from fineweb_shards.commands.main import main

if __name__ == "__main__":  # workers started by `spawn` import this module again
    sys.exit(main())
