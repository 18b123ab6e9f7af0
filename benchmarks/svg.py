"""SVG: panels with logarithmic axes, and labels that find room, readable in light and in dark."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

GLYPH = 6.2  # the width of a letter at 11 px, about

LIGHT = dict(paper="#ffffff", ink="#222222", quiet="#666666", grid="#e6e6e6", axis="#999999", lead="#bbbbbb",
             series=("#0b65c2", "#b8480b", "#1b7f4b", "#8336b0", "#8a6d00"))
DARK = dict(paper="#14171a", ink="#e6e6e6", quiet="#a0a0a0", grid="#2a2f34", axis="#777777", lead="#555555",
            series=("#6fb1ff", "#ff9d5c", "#62d296", "#cf9bff", "#e3c44f"))


def rules(paper, ink, quiet, grid, axis, lead, series) -> str:
    """The style of everything that has a colour."""
    coloured = "\n".join(
        f".s{i} {{ stroke: {c}; }} .full.s{i}, text.s{i} {{ fill: {c}; }} text.s{i} {{ stroke: none; }}"
        for i, c in enumerate(series))
    return f""".paper, .hollow {{ fill: {paper}; }} text {{ fill: {ink}; }} .quiet {{ fill: {quiet}; }}
.grid {{ stroke: {grid}; }} .axis {{ stroke: {axis}; }} .lead {{ stroke: {lead}; }} .roof {{ stroke: {ink}; }}
{coloured}"""


STYLE = f"""
svg {{ font: 11px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }}
.title {{ font-size: 15px; font-weight: 600; }}
.roof {{ stroke-width: 2; fill: none; }} .cache {{ stroke-dasharray: 5 4; stroke-width: 1.2; }}
.dot {{ stroke-width: 1.6; }} .curve {{ fill: none; stroke-width: 2; }} .link {{ opacity: 0.4; }}
{rules(**LIGHT)}
@media (prefers-color-scheme: dark) {{
{rules(**DARK)}
}}
"""


@dataclass(frozen=True)
class Panel:
    """A rectangle of the picture with two logarithmic axes."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = math.log(x / self.x[0]) / math.log(self.x[1] / self.x[0])
        up = math.log(y / self.y[0]) / math.log(self.y[1] / self.y[0])
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def frame(self, title: str, x_label: str, x_ticks: Iterable[float], y_ticks: Iterable[float]) -> list[str]:
        bottom, right = self.top + self.height, self.left + self.width
        parts = []
        for tick in x_ticks:
            x, _ = self.place(tick, self.y[0])
            parts += [line(x, self.top, x, bottom, "grid"), text(x, bottom + 15, f"{tick:g}", "quiet", "middle")]
        for tick in y_ticks:
            _, y = self.place(self.x[0], tick)
            parts += [line(self.left, y, right, y, "grid"), text(self.left - 6, y + 4, f"{tick:g}", "quiet", "end")]
        parts += [line(self.left, bottom, right, bottom, "axis"), line(self.left, self.top, self.left, bottom, "axis")]
        return parts + [text(self.left, self.top - 10, title), text(right, bottom + 30, x_label, "quiet", "end")]


def scale(values: Iterable[float]) -> tuple[tuple[float, float], list[float]]:
    """Return the ends of an axis for these values, and its ticks: powers of ten, or 1, 2, 5 of each if they are few."""
    low, high = min(values), max(values)
    low, high = low / 1.7, high * 1.7
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 300 else (1, 2, 5)
    return (low, high), [t for t in (step * 10.0**power for power in powers for step in steps) if low <= t <= high]


class Labels:
    """Text beside points, put where neither a label nor a point stands already."""

    def __init__(self, panel: Panel):
        self.panel, self.taken = panel, []

    def block(self, x: float, y: float, radius: float = 5) -> None:
        self.taken.append((x - radius, y - radius, x + radius, y + radius))

    def block_line(self, start, end) -> None:
        for step in range(41):
            self.block(*(a + (b - a) * step / 40 for a, b in zip(start, end)), 4)

    def add(self, x: float, y: float, words: str, kind: str) -> list[str]:
        """Try places around the point at growing distance; a line leads to a far one."""
        width, height, p = GLYPH * len(words), 12, self.panel
        for distance in (9, 14, 26, 38, 52, 68, 86, 106, 130):
            for angle in (0, 180, 30, -30, 150, -150, 60, -60, 120, -120, 90, -90):
                u, v = x + distance * math.cos(math.radians(angle)), y + distance * math.sin(math.radians(angle))
                left = u if abs(angle) < 90 else u - width if abs(angle) > 90 else u - width / 2
                box = (left, v - height / 2, left + width, v + height / 2)
                inside = p.left < box[0] and box[2] < p.left + p.width and p.top < box[1] and box[3] < p.top + p.height
                if inside and not any(overlap(box, other) for other in self.taken):
                    self.taken.append(box)
                    edge = 5 / distance  # a leading line starts at the dot's rim
                    lead = [line(x + edge * (u - x), y + edge * (v - y), u, v, "lead")] if distance > 14 else []
                    return [*lead, text(left, v + 4, words, kind)]
        return []  # no room: better no label than two that cannot be read


def overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def line(x1, y1, x2, y2, kind) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def text(x, y, words, kind="", anchor="start") -> str:
    words = exponents_raised(escape(words))
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def exponents_raised(words: str) -> str:
    base, _, power = words.partition("^")
    return f'{base}<tspan dy="-4" font-size="9">{power}</tspan>' if power else base


def dot(x, y, kind) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="dot {kind}"/>'


def polyline(points, kind) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="{kind}"/>'
