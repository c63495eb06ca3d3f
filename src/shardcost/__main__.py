"""``python -m shardcost``: the same as the ``shardcost`` command."""

import sys

from shardcost.cli import main

if __name__ == "__main__":
    sys.exit(main())
