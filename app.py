"""Starts the page: arguments → worker (loads in its own thread) → page → launch."""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from specchat.cli import add_pair_arguments, add_sampling_arguments, options_of, progress_on, settings_of, tee


def main() -> int:
    """Parses, checks, serves until interrupted."""
    parser = argparse.ArgumentParser(
        description="SpecChat: chat through speculative decoding, live in a browser tab."
    )
    add_pair_arguments(parser)
    add_sampling_arguments(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=None, help="port (default: the first free one from 7860)")
    parser.add_argument("--open", action="store_true", help="open the page in the default browser")
    args = parser.parse_args()
    try:
        settings, options = settings_of(args, "chain"), options_of(args)
    except ValueError as problem:
        parser.error(str(problem))

    from specchat.pair import Pair, Progress, open_pair
    from specchat.worker import Worker

    say = progress_on(sys.stderr)

    def load(progress: Progress) -> Pair:
        pair = open_pair(options, tee(say, progress))
        say("Ready to answer.")
        return pair

    worker = Worker(load)

    from specchat.ui import build  # imports Gradio while the model is already loading

    page = build(worker, settings)
    try:
        page.launch(args.host, args.port, args.open)
    except OSError as problem:
        print(f"specchat: the page could not be served ({problem}); choose another --port.", file=sys.stderr)
        return 1
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
