"""Starts the page: arguments → worker (loads in its own thread) → page → serve."""

from __future__ import annotations

import argparse
import sys
import threading
from typing import TYPE_CHECKING

from specchat.cli import add_pair_arguments, add_sampling_arguments, options_of, progress_on, settings_of, tee
from specchat.model import ahead
from specchat.worker import Worker

if TYPE_CHECKING:
    from specchat.pair import Pair, Progress


def main() -> int:
    """Parses, checks, serves until interrupted."""
    parser = argparse.ArgumentParser(description="Chat through speculative decoding, live in a browser tab.")
    add_pair_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (this machine only)")
    parser.add_argument("--port", type=int, default=None, help="port (default: the first free one from 7860)")
    parser.add_argument("--open", action="store_true", help="open the page in the default browser")
    args = parser.parse_args()
    try:
        settings, options = settings_of(args, "chain"), options_of(args)
    except ValueError as problem:
        parser.error(str(problem))
    ahead.begin()
    say, served = progress_on(sys.stderr), threading.Event()

    def load(progress: Progress) -> Pair:
        served.wait()  # the page first: both at once would only slow each other's imports down
        progress("Importing the models' libraries.")
        from specchat.pair import open_pair

        pair = open_pair(options, tee(say, progress))
        say("Ready to answer.")
        return pair

    worker = Worker(load)
    try:
        from specchat.ui import Options, build

        page = build(worker, settings, Options(pair=options))
        say(f"SpecChat is at {page.start(args.host, args.port, args.open)} (Ctrl-C ends it)")
        served.set()
        page.wait(say)
    except OSError as problem:
        parser.exit(1, f"specchat: the page could not be served ({problem}); choose another --port.\n")
    finally:
        served.set()
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
