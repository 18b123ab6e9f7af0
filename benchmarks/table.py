"""Tables: the results as text of at most 100 columns, numbers aligned, units in the header."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .measure import least_time
from .rows import Change, Duel, Row

WIDTH = 100
NOTHING = "–"


@dataclass(frozen=True)
class Group:
    """Lines that belong together, under a heading; `after` is prose below them."""

    heading: str
    lines: Sequence[Sequence[str]]
    after: str = ""


def table(title: str, headers: Sequence[str], groups: Iterable[Group], notes: Sequence[str] = ()) -> str:
    """Lay out groups of lines under one header: the first column to the left, the others to the right."""
    groups = list(groups)
    lines = [[headers[0], *headers[1:]], *([f"  {first}", *rest] for group in groups for first, *rest in group.lines)]
    widths = [max(map(len, column)) for column in zip(*lines)]

    def line(cells):
        first, *rest = (cell.rjust(width) for cell, width in zip(cells, widths))
        return "  ".join([cells[0].ljust(widths[0]), *rest]).rstrip()

    text = [title, "─" * max(len(title), len(line(lines[0]))), line(lines[0])]
    for group in groups:
        text += wrap(group.heading)
        text += [line([f"  {first}", *rest]) for first, *rest in group.lines]
        text += wrap(group.after, "  → ")
    for note in notes:
        text += wrap(note)
    return "\n".join(text) + "\n"


def wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * max(len(indent), 2))


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def number(value: float, decimals: int = 1) -> str:
    return f"{value:,.{decimals}f}" if value else NOTHING


def megabytes(nbytes: int | None) -> str:
    return NOTHING if nbytes is None else f"{nbytes / 1e6:.2f}"


def head(machine: dict, limits: dict) -> str:
    """Say what was measured on what, and how fast it can be at best."""
    load = f" · load {machine['load']:.1f} at the start" if machine["load"] is not None else ""
    threads = f"{machine['threads']} BLAS thread{'s' * (machine['threads'] != 1)} on {machine['cores']} cores"
    torch = f" · PyTorch {machine['torch']}" if "torch" in machine else ""
    lines = [
        f"NumPy {machine['numpy']} · {machine['blas']} · {threads} · {machine['dtype']}{' · quick' * machine['quick']}",
        f"{machine['cpu']} · {machine['system']} · Python {machine['python']}{torch} · {machine['date'][:16]}{load}",
        f"limits: products {limits['product'] / 1e9:.1f} GFLOP/s · memory {limits['memory'] / 1e9:.1f} GB/s (one core)"
        f" · cache {limits['cache'] / 1e9:.1f} GB/s"]
    if machine["load"] is not None and machine["load"] > machine["cores"] / 2:
        lines.append("Other programs are running: expect noise, most of all with several threads, and trust minima "
                     "more than medians.")
    return "\n".join(line for text in lines for line in wrap(text)) + "\n"


# ---------------------------------------------------------------- one function a kind of part

NOTES = {
    "operation": "% of limit: of the product rate if bound by compute, of the memory rate if bound by memory; above "
                 "100, the arrays stayed in the cache. GB/s counts each argument and each result once.",
    "step": "floor: the time of the products alone at the product rate, %: what share of the median that is.",
    "scaling": "grows as: the slope of the line of least squares through the logarithms.",
    "torch": "PyTorch ms: its median, the fastest of its ways. ratio: NumPy's time ÷ PyTorch's, the median over rounds "
             "in which the two, each a process of its own, took turns; minima: the same of the two minima. Below 1, "
             "NumPy is faster.",
}


def footnotes(kinds: Iterable[str]) -> str:
    """Explain the columns of the tables shown, each kind once."""
    return "\n".join(line for kind in dict.fromkeys(kinds) if kind in NOTES for line in wrap(NOTES[kind])) + "\n"


def torch_cells(row: Row, duels: dict | None) -> list[str]:
    """Return PyTorch's columns: none without a comparison, empty ones where there is no twin."""
    if duels is None:
        return []
    duel: Duel | None = duels.get((row.name, row.variant))
    if duel is None:
        return [NOTHING] * 3
    return [milliseconds(sorted(duel.torch)[len(duel.torch) // 2]), f"{duel.ratio:.2f}", f"{duel.best_ratio:.2f}"]


TORCH_HEADERS = ["PyTorch ms", "ratio", "minima"]


def operation_table(title: str, rows: Sequence[Row], limits: dict, duels: dict | None = None) -> str:
    """Times, the rates that follow from each row's work, and how near they come to the limit that binds."""
    def cells(row):
        needed, bound = least_time(row.flops, row.bytes, limits)
        return [row.variant, milliseconds(row.median), milliseconds(row.best), number(row.flops / row.median / 1e9),
                number(row.bytes / row.median / 1e9), bound, f"{100 * needed / row.median:.0f}",
                *torch_cells(row, duels)]

    headers = ["operation", "median ms", "best ms", "GFLOP/s", "GB/s", "bound by", "% of limit"]
    return table(title, headers + TORCH_HEADERS * (duels is not None), by_name(rows, cells))


def step_table(title: str, rows: Sequence[Row], limits: dict, duels: dict | None = None) -> str:
    """Steps beside their floor, the products alone at the machine's best rate."""
    def cells(row):
        floor = row.flops / limits["product"]
        return [row.variant, milliseconds(row.median), milliseconds(row.best), number(row.flops / row.median / 1e9),
                milliseconds(floor), f"{100 * floor / row.median:.0f}", *torch_cells(row, duels)]

    headers = ["step", "median ms", "best ms", "GFLOP/s", "floor ms", "%"]
    return table(title, headers + TORCH_HEADERS * (duels is not None), by_name(rows, cells))


def decode_table(title: str, rows: Sequence[Row], limits: dict, duels: dict | None = None) -> str:
    def cells(row):
        return [row.variant, milliseconds(row.median), milliseconds(row.best), f"{row.size / row.median:,.0f}",
                *torch_cells(row, duels)]

    headers = ["greedy decoding", "median ms", "best ms", "words/s"]
    return table(title, headers + TORCH_HEADERS * (duels is not None), by_name(rows, cells))


def pair_table(title: str, rows: Sequence[Row], conclusions: Sequence[str]) -> str:
    """Both ways of each pair, and what they teach."""
    with_memory = any(row.memory for row in rows)

    def cells(row):
        return [row.variant, milliseconds(row.median), milliseconds(row.best)] + [megabytes(row.memory)] * with_memory

    groups = [Group(f"{plain.name}  {plain.shape}", [cells(plain), cells(book)], conclusion)
              for plain, book, conclusion in zip(rows[::2], rows[1::2], conclusions)]
    return table(title, ["pair", "median ms", "best ms"] + ["peak MB"] * with_memory, groups)


def scaling_table(title: str, rows: Sequence[Row], exponents: dict) -> str:
    """One table a letter: a column for each of its values, and the fitted exponent at the end."""
    tables = []
    for letter in dict.fromkeys(row.variant for row in rows):
        swept = [row for row in rows if row.variant == letter]
        groups = []
        for name in dict.fromkeys(row.name for row in swept):
            own = [row for row in swept if row.name == name]
            time, memory = exponents[name, letter]
            groups.append(Group(name, [
                ["median ms", *(milliseconds(row.median) for row in own), f"{letter}^{time:.2f}"],
                ["peak MB", *(megabytes(row.memory) for row in own), f"{letter}^{memory:.2f}"]]))
        others = ", ".join(part for part in swept[0].shape.split(", ") if not part.startswith(letter))
        values = [f"{letter} = {size}" for size in dict.fromkeys(row.size for row in swept)]
        tables.append(table(f"{title}: {letter}, at {others}", ["both passes", *values, "grows as"], groups))
    return "\n".join(tables)


def comparison_table(title: str, changes: Sequence[Change], notes: Sequence[str]) -> str:
    """What became slower or faster, and how much stayed within the noise."""
    found = [change for change in changes if change.verdict]
    groups = [Group(part, [
        [f"{c.new.name}, {c.new.variant}", milliseconds(c.old.median), milliseconds(c.new.median),
         f"{c.medians:.2f}", f"{c.bests:.2f}", c.verdict] for c in found if c.new.part == part])
        for part in dict.fromkeys(change.new.part for change in found)]
    counts = [f"{sum(c.verdict == verdict for c in changes)} {verdict or 'within the noise'}"
              for verdict in ("slower", "faster", "")]
    return table(title, ["changed", "was ms", "is ms", "medians", "minima", "verdict"], groups,
                 [f"{len(changes)} rows compared: {', '.join(counts)}.", *notes])


def by_name(rows: Sequence[Row], cells) -> list[Group]:
    names = dict.fromkeys((row.name, row.shape) for row in rows)
    return [Group(f"{name}  {shape}", [cells(row) for row in rows if (row.name, row.shape) == (name, shape)])
            for name, shape in names]
