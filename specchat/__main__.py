"""`python -m specchat`: the terminal's way in."""

import os
import sys

import specchat

if sys.argv[1:2] == ["replay"]:
    # Needs no model: so not to wait for torch.
    from specchat.lab.replay_command import main as replay

    sys.exit(replay(sys.argv[2:]))

if sys.argv[1:2] == ["bench"] and os.environ.get("GOMP_SPINCOUNT") == specchat.SPINS:
    # Others are measured in this process too, and as they run by themselves: with OpenMP's own default.
    del os.environ["GOMP_SPINCOUNT"]

from specchat.cli import main

sys.exit(main())
