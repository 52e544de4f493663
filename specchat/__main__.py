"""`python -m specchat`: the terminal's way in."""

import sys

from specchat.cli import main

sys.exit(main())
