"""The figure: the roofline and the scaling curves as one SVG.

Both axes of every panel are logarithmic. In the roofline an operation stands at its arithmetic
intensity I = flops / bytes, as high as the rate it reached; with data from memory nothing can stand
above

    min(product rate, I · memory rate)

a slope that bends into a ceiling. Near the slope an operation is held up by memory, near the ceiling
by arithmetic, far below both by how it is written.
"""

from collections.abc import Sequence

from .rows import Row
from .svg import GLYPH, STYLE, Labels, Panel, dot, line, polyline, scale, text

WIDTH, MARGIN = 960, 56
ROOFLINE_HEIGHT, PANEL_HEIGHT = 520, 230


def roofline(rows: Sequence[Row], limits: dict, top: float) -> list[str]:
    """Operations as dots, forward full and backward hollow, each at its best; the limits as lines."""
    parts = list(dict.fromkeys(row.part for row in rows))
    intensity = {row: row.flops / row.bytes for row in rows}
    rate = {row: row.flops / row.best / 1e9 for row in rows}
    ceiling, ridge = limits["product"] / 1e9, limits["product"] / limits["memory"]
    x_range, x_ticks = scale([*intensity.values(), ridge / 10, ridge * 10])
    y_range, y_ticks = scale([*rate.values(), ceiling, ceiling / 100])
    panel = Panel(MARGIN, top, WIDTH - 2 * MARGIN, ROOFLINE_HEIGHT - 100, x_range, y_range)
    drawn = panel.frame("GFLOP/s", "arithmetic intensity, flops / byte", x_ticks, y_ticks)
    labels = Labels(panel)
    start = {name: max(x_range[0], y_range[0] * 1e9 / limits[name]) for name in ("memory", "cache")}
    points = {name: [panel.place(start[name], limits[name] * start[name] / 1e9),
                     panel.place(limits["product"] / limits[name], ceiling)] for name in start}
    end = panel.place(x_range[1], ceiling)
    drawn += [polyline([*points["memory"], end], "roof"), polyline(points["cache"], "roof cache")]
    for one, other in (points["memory"], points["cache"], (points["memory"][1], end)):
        labels.block_line(one, other)
    dots = {row: panel.place(intensity[row], rate[row]) for row in rows}
    for x, y in dots.values():
        labels.block(x, y)
    for (u, v), (p, q), words in ((*points["memory"], f"memory {limits['memory'] / 1e9:.1f} GB/s"),
                                  (*points["cache"], f"cache {limits['cache'] / 1e9:.1f} GB/s"),
                                  (points["memory"][1], end, f"products {ceiling:.0f} GFLOP/s")):
        drawn += labels.add(u + (p - u) * 0.8, v + (q - v) * 0.8, words, "ink")
    by_name: dict[tuple, list[Row]] = {}
    for row in rows:
        by_name.setdefault((row.part, row.name), []).append(row)
    for (part, name), passes in by_name.items():
        kind = f"s{parts.index(part)}"
        if len(passes) == 2:
            drawn.append(line(*dots[passes[0]], *dots[passes[1]], f"link {kind}"))
        drawn += [dot(*dots[row], f"{'hollow' if row.variant == 'backward' else 'full'} {kind}") for row in passes]
        drawn += labels.add(*dots[passes[0]], name, kind)
    return drawn + legend([*parts, "full: forward · hollow: backward"], top + ROOFLINE_HEIGHT - 58)


def legend(names: Sequence[str], y: float) -> list[str]:
    drawn, x = [], float(MARGIN)
    for index, name in enumerate(names):
        drawn.append(text(x, y, name, f"s{index}" if index < len(names) - 1 else "quiet"))
        x += GLYPH * len(name) + 18
    return drawn


def scaling_panels(rows: Sequence[Row], exponents: dict, top: float) -> list[str]:
    """For each letter two panels, time above memory, a curve a subject with its exponent."""
    letters, names = list(dict.fromkeys(r.variant for r in rows)), list(dict.fromkeys(r.name for r in rows))
    room = (WIDTH - 2 * MARGIN + 40) / len(letters)
    drawn = []
    quantities = ("median ms", lambda row: 1e3 * row.median), ("peak MB", lambda row: row.memory / 1e6)
    for below, (unit, value) in enumerate(quantities):
        y_range, y_ticks = scale([value(row) for row in rows])
        for column, letter in enumerate(letters):
            swept = [row for row in rows if row.variant == letter]
            sizes = sorted({row.size for row in swept})
            panel = Panel(MARGIN + column * room, top + below * PANEL_HEIGHT, room - 40, PANEL_HEIGHT - 70,
                          (sizes[0] / 1.2, sizes[-1] * 1.2), y_range)
            drawn += panel.frame(unit, letter, sizes, y_ticks)
            labels = Labels(panel)
            curves = {name: [panel.place(row.size, value(row)) for row in swept if row.name == name] for name in names}
            for points in curves.values():
                for start, end in zip(points, points[1:]):
                    labels.block_line(start, end)
            for name, points in curves.items():
                kind = f"s{names.index(name)}"
                drawn += [polyline(points, f"curve {kind}"), *(dot(x, y, f"full {kind}") for x, y in points)]
                middle = points[len(points) // 2]
                drawn += labels.add(*middle, f"{name} {letter}^{exponents[name, letter][below]:.2f}", kind)
    return drawn


def draw(rows: Sequence[Row], limits: dict, exponents: dict, caption: Sequence[str]) -> str:
    """Return the figure of everything in `rows` that can be drawn: rates under the roof, scaling curves."""
    under_roof = [row for row in rows if row.flops and row.bytes]
    scaling = [row for row in rows if row.part == "scaling"]
    drawn, top = [text(MARGIN - 30, 28, "How fast the pages run", "title")], 46
    for words in caption:
        drawn.append(text(MARGIN - 30, top, words, "quiet"))
        top += 15
    top += 24
    drawn += roofline(under_roof, limits, top)
    top += ROOFLINE_HEIGHT
    if scaling:
        drawn.append(text(MARGIN - 30, top - 16, "How time and memory grow", "title"))
        drawn += scaling_panels(scaling, exponents, top + 24)
        top += 2 * PANEL_HEIGHT
    size = f'width="{WIDTH}" height="{top}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" {size}>',
                      f"<style>{STYLE}</style>", f'<rect class="paper" {size}/>', *drawn, "</svg>", ""])
