"""Will this pair work here? Everything that can be said before a weight is loaded, line by line.

`python -m specchat.lab.forecast` answers requests, one JSON object a line, until its input ends: the page asks it
in a process of its own, because the libraries change global state while they describe a model, which a thread
that writes a reply must not feel, and because a process can be ended when it takes too long.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import psutil
import torch
from safetensors import safe_open
from torch import Tensor

from specchat.drafts import default_draft, is_head
from specchat.model.catalog import OWN_DRAFTS, PAIRS, Finding, PairOptions, billions
from specchat.model.checkpoint import read_json
from specchat.model.compact import supports
from specchat.model.errors import ModelError, sentence
from specchat.model.head_file import check_head
from specchat.model.loading import pick_device, pick_dtype
from specchat.model.memory import free_memory, gigabytes
from specchat.model.pairing import compare, plan_of
from specchat.model.sketch import NotHere, Sketch, sketch
from specchat.model.sources import kind_of
from specchat.pair import DEFAULT_CONTEXT, load_dtype


def forecast(options: PairOptions, freed: int = 0, ask_hub: bool = False) -> list[Finding]:
    """What stands for and against this choice. freed: bytes that the pair loaded now gives back first.

    A "no" among the findings means that `open_pair` would refuse it. Never raises for what a person chose.
    """
    choice = options.draft or default_draft(options.target)
    second = None if choice in OWN_DRAFTS or is_head(choice) else choice
    found, target = _model("Target", options.target, options, ask_hub)
    draft = None
    if second is not None:
        more, draft = _model("Draft", second, options, ask_hub)
        found += more
    placed = _device(options)
    found += placed
    if any(one.verdict == "no" for one in placed):
        return found
    if target is None or (second is not None and draft is None):
        return found + _from_catalogue(options, second, freed)
    if second is None:
        found += _own(choice, target)
    elif draft is not None:
        found += _compared(target, draft)
    if target.no_rollback:
        found.append(
            Finding(
                "Speculation", "note", f"Off: {target.name} cannot take back tokens ({target.no_rollback})."
            )
        )
    found += [*_context(options, target), *_precision(options, target)]
    return found + _memory(options, target, draft, choice == "self", freed)


def _model(topic: str, source: str, options: PairOptions, ask: bool) -> tuple[list[Finding], Sketch | None]:
    """What is known of one model; None if it is not known enough to be compared."""
    try:
        model = sketch(source, options.cache_dir, ask)
    except NotHere as absent:
        known = billions(source)
        # Weights are published in 16 bits, nearly always.
        about = f" About {gigabytes(2e9 * known)} to fetch." if known and kind_of(source) == "hub" else ""
        return [Finding(topic, "open", f"{absent}{about}")], None
    except (ModelError, OSError) as problem:
        return [Finding(topic, "no", sentence(problem))], None
    kind = getattr(model.module.config, "model_type", "?")
    text = (
        f"{model.name}: {kind}, {words(model.weights)} weights, {model.vocab:,} token ids, made for "
        f"{model.context:,} tokens."
    )
    return [
        Finding(topic, "yes", text),
        *([Finding(topic, "note", model.still)] if model.still else []),
    ], model


def _from_catalogue(options: PairOptions, second: str | None, freed: int) -> list[Finding]:
    """What the catalogue knows of models that are not on this machine."""
    found = []
    if any((pair.target, pair.draft) == (options.target, second) for pair in PAIRS):
        text = "The catalogue lists these two as sharing a vocabulary; loading compares them."
        found.append(Finding("Vocabulary", "open", text))
    sizes = [billions(source) for source in (options.target, second) if source is not None]
    place = pick_device(options.device)
    itemsize = pick_dtype(load_dtype(options), place).itemsize
    if sizes and None not in sizes:
        need, free = sum(size or 0 for size in sizes) * itemsize * 1e9, free_memory(place) + freed
        room = free + (psutil.virtual_memory().available if place.type == "cuda" else 0)
        text = f"The weights take about {gigabytes(need)} here, caches aside; {gigabytes(free)} are free or will be."
        found.append(Finding("Memory", "open" if need <= room else "no", text))
    return found


def words(count: float) -> str:
    """A number of weights: "135 million", "7.62 billion"."""
    return (
        f"{count / 1e9:.2f} billion"
        if count >= 1e9
        else f"{count / 1e6:,.3g} million"
        if count >= 1e6
        else f"{count:,.0f}"
    )


def _device(options: PairOptions) -> list[Finding]:
    try:
        place = pick_device(options.device)
    except ModelError as problem:
        return [Finding("Device", "no", str(problem))]
    return [Finding("Device", "yes", f"Both run on {place}.")] if options.device != "auto" else []


def _compared(target: Sketch, draft: Sketch) -> list[Finding]:
    """With a target that is served plainly, no draft stands in the way."""
    found = compare(target, draft)
    if not target.no_rollback:
        return found
    return [dataclasses.replace(one, verdict="note") if one.verdict == "no" else one for one in found]


def _own(choice: str, target: Sketch) -> list[Finding]:
    """The drafts that need no second model."""
    if target.no_rollback:
        return []
    told = {
        "none": Finding("Draft", "note", "None: plain decoding, nothing to compare it with."),
        "self": Finding(
            "Draft", "note", "The target itself: every proposal costs a whole step, so nothing is gained."
        ),
        "ngram": Finding(
            "Draft", "yes", "N-grams of the text: they need no second model and fit every target."
        ),
    }
    if choice in told:
        return [told[choice]]
    reason = supports(target.module.config)
    if reason is not None:
        return [Finding("Draft", "no", f"This draft needs a Llama-, Mistral- or Qwen-like target: {reason}.")]
    if choice == "shallow":
        return [
            Finding("Draft", "note", "The target's first layers, untrained: it fits, and is seldom right.")
        ]
    return [_head(Path(choice).expanduser(), target)]


def _head(path: Path, target: Sketch) -> Finding:
    if target.folder is None:
        return Finding(
            "Draft", "open", f"Whether {path.name} was made for this target is seen when it is loaded."
        )
    table = target.module.get_input_embeddings().weight
    try:
        check_head(path, (table.shape[0], table.shape[1]), target.vocab, lambda ids: _stored(target, ids))
    except (ModelError, OSError) as problem:
        return Finding("Draft", "no", sentence(problem))
    except (KeyError, ValueError, RuntimeError):
        return Finding(
            "Draft", "open", f"Whether {path.name} was made for this target is seen when it is loaded."
        )
    return Finding(
        "Draft", "yes", f"{path.name} was trained for this target: the rows it remembers are the target's."
    )


def _stored(target: Sketch, ids: Tensor) -> Tensor:
    """Some rows of the embedding, straight from the file."""
    assert target.folder is not None
    name, index = "model.embed_tokens.weight", target.folder / "model.safetensors.index.json"
    file = "model.safetensors"
    if index.exists():
        places = read_json(index)["weight_map"]
        file = str(places[name]) if isinstance(places, dict) else file
    with safe_open(target.folder / file, "pt") as tensors:
        rows = tensors.get_slice(name)
        return torch.cat([rows[i : i + 1].float() for i in ids.tolist()])


def _context(options: PairOptions, target: Sketch) -> list[Finding]:
    asked = options.context or DEFAULT_CONTEXT
    held = min(asked, target.context)
    if options.context and held < asked:
        text = f"{asked:,} were asked for, {target.name} was made for {target.context:,}: conversations hold that many tokens."
        return [Finding("Context", "note", text)]
    return [Finding("Context", "yes", f"A conversation holds {held:,} tokens, reply included.")]


def _precision(options: PairOptions, target: Sketch) -> list[Finding]:
    reason = supports(target.module.config)
    if reason is None or options.precision in ("auto", "float32", load_dtype(options)):
        return []
    text = f"{options.precision} is not there for this target ({reason}); it runs in {load_dtype(options) or 'its default'}."
    return [Finding("Precision", "note", text)]


def _memory(
    options: PairOptions, target: Sketch, draft: Sketch | None, own: bool, freed: int
) -> list[Finding]:
    planned = plan_of(
        target, draft, context=options.context or DEFAULT_CONTEXT, dtype=load_dtype(options),
        device=options.device, own_draft=own, freed=freed,
    )  # fmt: skip
    return [Finding("Memory", "yes" if planned.fits else "no", planned.sentence)]


def answer(line: str) -> str:
    """One request → one answer, both JSON: {options, freed, ask_hub} → a list of findings."""
    try:
        request = json.loads(line)
        found = forecast(PairOptions(**request["options"]), int(request["freed"]), bool(request["ask_hub"]))
    except Exception as problem:  # the page must get an answer, whatever a file did to the libraries
        found = [
            Finding("Check", "open", f"It could not be finished ({sentence(problem)}); loading will say.")
        ]
    return json.dumps([dataclasses.asdict(one) for one in found])


def main() -> None:
    """Until the input ends."""
    if hasattr(os, "nice"):
        os.nice(10)
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, sys.stderr  # what the libraries print is no answer
    for line in sys.stdin:
        print(answer(line), file=out, flush=True)


if __name__ == "__main__":
    main()
