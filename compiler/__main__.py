"""`python -m compiler` is the command `tilewright`."""

import sys

from compiler.tools.cli import main

sys.exit(main())
