"""The proof as HTML: a verdict in a sentence, the tables behind it, and what it does not show. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from specchat.lab.agreement import TIE
from specchat.lab.proof_plan import ALPHA, Cell, GreedyRow, Progress, Proof, SampledLaw
from specchat.lab.proof_stats import Test
from specchat.lab.proof_words import TITLES, p_words, sentences, state_of
from specchat.lab.words import percent
from specchat.ui.panels import seconds

INTRO = (
    '<div class="sc-proof-intro"><h2>Proof</h2><p>Speculation must not change what the target writes, only when. Two '
    "checks on the loaded pair, with the sidebar's settings: greedy texts with speculation on and off are compared token "
    "by token, and the first tokens of many sampled replies are tested for having the same law.</p></div>"
)


def empty() -> str:
    """Before the first run."""
    return (
        '<div class="sc-proof-empty"><p>Nothing has been run yet. The greedy check takes about as long as two replies for '
        "each text; the law is sampled for as long as you choose: the longer, the smaller the difference that would "
        "be noticed. The chat stays as it is, but its next message is read again from the first word.</p></div>"
    )


def bar(progress: Progress) -> str:
    """How far it is."""
    share = f"{max(0.0, min(1.0, progress.share)) * 100:.0f}"
    return (
        f'<div class="sc-proof-bar" role="progressbar" aria-valuenow="{share}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-label="Progress"><i style="width:{share}%"></i></div>'
    )


def result(proof: Proof, progress: Progress | None = None) -> str:
    """The whole page of it; with progress, as far as it is."""
    parts = [bar(progress) if progress else verdict(proof)]
    if proof.greedy:
        parts.append(greedy(proof.greedy))
    if proof.law is not None:
        parts.append(law(proof.law))
    if progress is None:
        parts.append(limits(proof))
    return f'<div class="sc-proof">{"".join(parts)}</div>'


def verdict(proof: Proof) -> str:
    """The sentence at the top."""
    state = state_of(proof)
    lines = "".join(f"<p>{escape(line)}</p>" for line in sentences(proof))
    return (
        f'<section class="sc-proof-verdict" data-verdict="{state}"><h3>{TITLES[state]}</h3>{lines}</section>'
    )


def greedy(rows: Sequence[GreedyRow]) -> str:
    """A row for each text."""
    body = "".join(
        f'<tr data-same="{"no" if row.difference else "yes"}"><th scope="row">{escape(row.name)}</th><td>{row.compared}</td>'
        f"<td>{escape(_outcome(row))}</td><td>{_margins(row)}</td>"
        f"<td>{row.on.accepted} of {row.on.drafted}</td></tr>"
        for row in rows
    )
    head = "".join(
        f'<th scope="col"{tip}>{name}</th>'
        for name, tip in (
            ("text", ""),
            ("tokens equal", ""),
            ("outcome", ""),
            ("margin", ' title="The gap between the target&#39;s two best logits where the texts part."'),
            ("proposals kept", ""),
        )
    )
    return (
        '<section><h3 class="sc-proof-title">Greedy texts</h3><div class="sc-proof-scroll" tabindex="0"><table class='
        f'"sc-proof-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>'
    )


def _outcome(row: GreedyRow) -> str:
    if row.difference is not None:
        on, off = (text.replace("\n", "↵") for text in row.wrote)
        return f'differs at token {row.difference.place + 1}: "{on}" on, "{off}" off'
    if row.ties:
        places = ", ".join(str(tie.place + 1) for tie in row.ties)
        return f"identical but for a tie at token {places}"
    return "identical"


def _margins(row: GreedyRow) -> str:
    partings = [*row.ties, *([row.difference] if row.difference else [])]
    return "; ".join(f"{p.margin.gap:.4f} (tie up to {p.margin.tie_below:.4f})" for p in partings) or "–"


def law(found: SampledLaw) -> str:
    """The outcomes, and the tests."""
    where = escape(found.before.replace("\n", "↵"))
    widest = max(
        [cell.exact or 0.0 for cell in found.cells] + [_share(c, found.n) for c in found.cells] + [1e-9]
    )
    body = "".join(_cell(cell, found.n, widest) for cell in found.cells)
    exact = '<th scope="col">exact</th>' if found.exact_first else ""
    length = found.exact_first or found.first
    return (
        f'<section><h3 class="sc-proof-title">Law of the first tokens</h3><p class="sc-proof-note">Behind <q>{where}</q>, '
        f'in "{escape(found.prompt)}", {found.n} samples each in {seconds(found.seconds)}, every one with its own seed. '
        f"{found.stats.accepted} of {_judged(found)} judged proposals were kept. The likeliest outcomes of "
        f'{"the first token" if length == 1 else f"the first {length} tokens"}:</p><div class="sc-proof-scroll" tabindex="0">'
        f'<table class="sc-proof-table sc-proof-law"><thead><tr><th scope="col">tokens</th><th scope="col">on</th>'
        f'<th scope="col">off</th>{exact}<th scope="col" class="sc-proof-bars">on above off'
        f'{", exact as a line" if exact else ""}</th></tr></thead><tbody>{body}</tbody></table></div>{tests(found)}</section>'
    )  # fmt: skip


def _judged(found: SampledLaw) -> int:
    """Proposals that a verdict was reached on: those behind a rejection were not looked at."""
    return sum(reached for _, reached, _ in found.stats.by_position())


def _cell(cell: Cell, n: int, widest: float) -> str:
    on, off = cell.on / n if n else 0.0, cell.off / n if n else 0.0
    line = ""
    if cell.exact is not None:
        line = f'<b style="left:{cell.exact / widest * 100:.1f}%"></b>'
    bars = (
        f'<div class="sc-proof-pair"><i class="sc-draft" style="width:{on / widest * 100:.1f}%"></i>'
        f'<i class="sc-target" style="width:{off / widest * 100:.1f}%"></i>{line}</div>'
    )
    exact = f"<td>{cell.exact * 100:.1f} %</td>" if cell.exact is not None else ""
    text = escape(cell.text.replace("\n", "↵").replace(" ", "·"))
    return (
        f'<tr><th scope="row"><code>{text}</code></th><td>{on * 100:.1f} %</td><td>{off * 100:.1f} %</td>{exact}'
        f'<td class="sc-proof-bars">{bars}</td></tr>'
    )


def _share(cell: Cell, n: int) -> float:
    return max(cell.on, cell.off) / n if n else 0.0


def tests(found: SampledLaw) -> str:
    """Statistic, p, distance, and what would have been noticed."""
    if not found.tests:
        return ""
    columns = {
        "test": "",
        "χ² (degrees of freedom)": "Outcomes that are expected fewer than five times are pooled.",
        "p": f"How often chance alone gives at least such a statistic. Below {found.threshold:.1e} the laws differ.",
        "distance": "Total variation of what was counted: 0 alike, 1 nothing in common. Chance alone makes it above 0.",
        "noticeable": "A true distance of this much would have been noticed nine times in ten.",
    }
    head = "".join(
        f'<th scope="col"{f" title={chr(34)}{escape(tip)}{chr(34)}" if tip else ""}>{name}</th>'
        for name, tip in columns.items()
    )
    body = "".join(_test(test, found.threshold) for test in found.tests)
    return (
        '<div class="sc-proof-scroll" tabindex="0"><table class="sc-proof-table sc-proof-tests"><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _test(test: Test, threshold: float) -> str:
    p = f"{p_words(test.p)}{' (differs)' if test.p < threshold else ''}"
    return (
        f'<tr data-same="{"no" if test.p < threshold else "yes"}"><th scope="row">{escape(test.name)}</th><td>'
        f"{test.statistic:.1f} ({test.dof})</td><td>{p}</td><td>{test.distance:.3f}</td><td>{test.noticeable:.2f}</td></tr>"
    )


def limits(proof: Proof) -> str:
    """What this proves and what it does not."""
    notes = []
    if proof.greedy:
        notes.append(
            "Greedy texts: exactly these tokens of these texts. A tie is a place where the two best logits lie closer "
            f"than {TIE:g}, or than four times the rounding measured there: a block of rows is summed in another order."
        )
    if proof.law is not None:
        notes.append(
            f"The law: of the first {proof.law.first} tokens at one place of one text. A fault smaller than the noticeable "
            "distance, or one that only comes later, is not seen. More time makes the distance smaller: four times the "
            "samples halve it."
        )
        notes.append(
            f"A correct pair is called different once in {round(1 / ALPHA):,} runs, all tests of a run together. A p of "
            f"{percent(0.2)} or {percent(0.8)} means the same: nothing was noticed."
        )
    settings = proof.plan.settings
    extras = [
        text
        for on, text in (
            (settings.adaptive, "adaptive γ"),
            (settings.confidence > 0, "the confidence stop"),
            (settings.draft_sampling is not None, "a sampling of the draft's own"),
        )
        if on
    ]
    sampling = settings.sampling
    notes.append(
        f"In force: γ {settings.gamma}, drafter {settings.drafter}, temperature {sampling.temperature:g}, top-k "
        f"{sampling.top_k}, top-p {sampling.top_p:g}{', ' + ', '.join(extras) if extras else ''}."
    )
    if settings.guard:
        notes.append(
            "The guard was left out: while it lets speculation rest, on and off are the same thing, and nothing is tested."
        )
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section class="sc-proof-limits"><h3 class="sc-proof-title">What this shows, and what not</h3><ul>{items}</ul></section>'
