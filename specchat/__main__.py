"""`python -m specchat`: the terminal's way in."""

import sys

if sys.argv[1:2] == ["replay"]:
    # Needs no model: so not to wait for torch.
    from specchat.lab.replay_command import main as replay

    sys.exit(replay(sys.argv[2:]))

from specchat.cli import main

sys.exit(main())
