"""`python -m specchat distil`: the target writes, the draft learns, the result leaves with its provenance.

Every stage goes on where it was stopped: what was written counts, training starts from its last checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch

from specchat.chat.controls import control_tokens
from specchat.lab.distil.generate import Author, Style, write
from specchat.lab.distil.kinds import Kind, kind_of
from specchat.lab.distil.openings import OPENINGS, PASSAGES
from specchat.lab.distil.shards import Shards
from specchat.lab.distil.train import Recipe, Trainer
from specchat.lab.distil.turns import turns_of
from specchat.model.catalog import PairOptions
from specchat.model.compact import CompactDecoder
from specchat.model.errors import UnsupportedModel
from specchat.model.memory import free_memory
from specchat.model.provenance import about_file
from specchat.model.store import cache_root
from specchat.model.threads import default_threads
from specchat.pair import Pair, Progress, open_pair

Say = Callable[[str], None]

LONGEST = 1024
"""Most ids of a conversation that the target writes."""


def run(args: argparse.Namespace, options: PairOptions, progress: Progress, say: Say) -> None:
    """All of it; says where the draft is and how often it is accepted.

    Raises ValueError with a sentence for arguments that do not go together, KeyboardInterrupt when stopped (what
    was done is kept).
    """
    kind = kind_of(args.kind, options)
    out = args.out or Path("draft-layers" if args.kind == "layers" else "draft.safetensors")
    check(args, options, kind, out)
    # A fixed number: training would otherwise go on with whichever was in use last.
    fixed = replace(options, threads=options.threads or default_threads())
    pair = open_pair(replace(fixed, draft="none", context=options.context or LONGEST), progress)
    if not isinstance(pair.target, CompactDecoder):
        raise UnsupportedModel(
            "A draft can be made for Llama-, Mistral- and Qwen-like targets only, whose hidden states are at hand. "
            f"{pair.target_name} is of another kind; --draft ngram works with any."
        )
    name = re.sub(r"[^\w.-]+", "-", pair.target_name)
    folder = args.work or cache_root(options.cache_dir) / "distil" / name
    folder.mkdir(parents=True, exist_ok=True)
    _demand_same_target(folder, pair.target, pair.target_name)
    kind.check_target(pair.target, args.start)  # what does not fit is refused now, not after hours
    commands = _remember(folder, args.argv)
    with stop_when_interrupted() as go_on:
        generate(args, pair, pair.target, folder, go_on, progress)
        _demand_going(go_on, folder, progress)
        recipe = Recipe(minutes=args.minutes, seed=args.seed, vocab=args.vocabulary)
        trainer = kind.trainer(pair.target, recipe, folder, progress, args.start)
        train(trainer, go_on, progress)
        _demand_going(go_on, folder, progress)
    about = provenance(trainer, commands, args.slots, kind.places)
    kind.export(out, trainer, pair.target, pair.target_name, about)
    places = ", ".join(f"{kept:.2f}" for kept in _last(trainer))
    say(f"{out} and {about_file(out).name}: held-out acceptance by position {places}")
    say(f"Use it: --target {shlex.quote(options.target)} --draft {shlex.quote(str(out))}")


def check(args: argparse.Namespace, options: PairOptions, kind: Kind, out: Path) -> None:
    """ValueError for what could only fail after hours."""
    if options.draft:
        raise ValueError("--draft has no meaning here: the draft is what will be made. Leave it out.")
    kind.check(out)
    for name in ("tokens", "minutes", "slots", "vocabulary"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name} is {getattr(args, name)}; it must be more than 0.")
    out.parent.mkdir(parents=True, exist_ok=True)


def generate(
    args: argparse.Namespace,
    pair: Pair,
    target: CompactDecoder,
    folder: Path,
    go_on: Callable[[], bool],
    progress: Progress,
) -> None:
    """Until the folder holds the tokens that were asked for."""
    shards = Shards(folder / "texts", target.vocab, args.seed)
    if shards.tokens >= args.tokens:
        progress(f"{shards.tokens:,} tokens are written already.")
        return
    turns = turns_of(pair.template, control_tokens(pair.tokenizer, pair.eos_ids))
    openings, passages = (
        [pair.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        for texts in (OPENINGS, PASSAGES)
    )
    slots = _slots(args.slots, target)
    progress(f"{pair.target_name} writes {args.tokens:,} tokens, {slots} conversations at once.")
    # Another seed for each part, or a run that goes on would write the same again.
    author = Author(
        target, turns, openings, Style(), slots, f"{args.seed}:{shards.tokens}", LONGEST, passages
    )
    write(author, shards, args.tokens, go_on, progress)


def train(trainer: Trainer, go_on: Callable[[], bool], progress: Progress) -> None:
    """Until the time is used up."""
    corpus = trainer.corpus
    progress(
        f"Training on {len(corpus.train):,} conversations, {corpus.tokens:,} tokens; "
        f"{len(corpus.held_out):,} are held out."
    )
    if not trainer.step:
        trainer.evaluate()
    trainer.run(go_on)


def provenance(trainer: Trainer, commands: list[str], slots: int, places: str) -> dict[str, object]:
    """What the run knows of itself. places: what the acceptance by position means."""
    recipe = trainer.recipe
    return {
        "command": commands[-1],
        **({"earlier_commands": commands[:-1]} if len(commands) > 1 else {}),
        "seed": recipe.seed,
        "texts": {
            "written_by": "the target itself, by this command; no data set",
            "tokens": trainer.corpus.tokens,
            "conversations": len(trainer.corpus.train) + len(trainer.corpus.held_out),
            "style": dataclasses.asdict(Style()),
            "slots": slots,
        },
        "recipe": dataclasses.asdict(recipe),
        "steps": trainer.step,
        "tokens_trained_on": trainer.tokens,
        "seconds_of_training": round(trainer.elapsed),
        "threads": torch.get_num_threads(),
        "training_loss": round(trainer.loss, 4),
        "held_out": {
            "conversations": min(recipe.held_out, len(trainer.corpus.held_out)),
            "settings": f"temperature {recipe.temperature}, top-k {recipe.top_k}",
            "acceptance_by_position": _last(trainer),
            "meaning": places,
        },
    }


@contextmanager
def stop_when_interrupted() -> Iterator[Callable[[], bool]]:
    """Inside, the first interrupt only makes the function that it gives say no; a second one is as usual."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: True
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: not stopped.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def _demand_going(go_on: Callable[[], bool], folder: Path, progress: Progress) -> None:
    if not go_on():
        progress(f"Stopped. What was done is kept in {folder}; the same command goes on from there.")
        raise KeyboardInterrupt


def _last(trainer: Trainer) -> list[float]:
    """Held-out acceptance by position of the last evaluation."""
    kept = trainer.history[-1]["kept"]
    assert isinstance(kept, list)
    return kept


def _slots(wanted: int, target: CompactDecoder) -> int:
    """As many as are wanted, if their caches take at most half of what is free."""
    each = target.cache_bytes * min(LONGEST, target.capacity) // target.capacity
    return max(1, min(wanted, free_memory(target.device) // 2 // each - 1))


def _demand_same_target(folder: Path, target: CompactDecoder, name: str) -> None:
    """ValueError when the folder belongs to another target: its texts and states would be another's."""
    table = target.weights.table
    rows = table[torch.linspace(0, len(table) - 1, 64, device=table.device).long()].float().cpu()
    own = {"target": name, "rows": hashlib.sha256(rows.numpy().tobytes()).hexdigest()}
    path = folder / "target.json"
    if not path.exists():
        path.write_text(json.dumps(own, indent=1), encoding="utf-8")
        return
    known = json.loads(path.read_text(encoding="utf-8"))
    if known["rows"] != own["rows"]:
        raise ValueError(
            f"{folder} holds the work for {known['target']}, and {name} has other weights; choose another --work."
        )


def _remember(folder: Path, argv: list[str]) -> list[str]:
    """The command lines that worked in this folder, this one last."""
    path = folder / "commands.json"
    known: list[str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    known.append(shlex.join(["python", "-m", "specchat", *argv]))
    path.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return known
