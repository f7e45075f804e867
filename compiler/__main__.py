"""`python -m compiler` is the command `tilewright`."""

import sys

from compiler.cli import main

sys.exit(main())
