"""The results as one picture: a line for each cell, a dot for each peer, on a logarithmic scale; an SVG file."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from framepool.bench.run import OWN, Result

WIDTH, LEFT, RIGHT, ROW, TOP = 960, 250, 40, 34, 96
COLOURS = ("#d1495b", "#00798c", "#edae49", "#66a182", "#5c6b9e", "#8d6a9f", "#7a7a7a")
FONT = 'font-family="system-ui, sans-serif"'


def svg(results: Sequence[Result]) -> str:
    """The picture."""
    groups = [
        ("One-way latency p50, µs (left is better)", [each for each in results if each.cell.kind == "latency"]),
        ("Frames delivered a second (right is better)", [each for each in results if each.cell.kind == "rate"]),
    ]
    names = list(dict.fromkeys(line.peer for each in results for line in each.lines))
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    height = TOP + sum((len(rows) + 2) * ROW for _, rows in groups if rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT} font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="20" y="30" font-size="18" font-weight="600">framepool and its peers, in one run</text>',
        *_legend(colours),
    ]
    top = TOP
    for title, rows in groups:
        if rows:
            parts += _group(title, rows, colours, top)
            top += (len(rows) + 2) * ROW
    return "\n".join([*parts, "</svg>", ""])


def _legend(colours: dict[str, str]) -> list[str]:
    parts, x = [], 20
    for name, colour in colours.items():
        radius = 7 if name == OWN else 5
        parts.append(f'<circle cx="{x + 6}" cy="56" r="{radius}" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="61">{html.escape(name)}</text>')
        x += 34 + 8 * len(name)
    parts.append(f'<path d="M{x + 6} 48 v16" stroke="#222" stroke-width="2"/>')
    parts.append(f'<text x="{x + 14}" y="61">memcpy of that size</text>')
    return parts


def _group(title: str, rows: Sequence[Result], colours: dict[str, str], top: int) -> list[str]:
    figures = [line.median for row in rows for line in row.lines if line.median]
    if rows[0].cell.kind == "latency":
        figures += [row.limits["memcpy"] for row in rows if "memcpy" in row.limits]
    low, high = (math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures)))) if figures else (0, 1)
    span = max(1, high - low)

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - low) / span

    bottom = top + (len(rows) + 1) * ROW
    parts = [f'<text x="20" y="{top + 12}" font-weight="600">{html.escape(title)}</text>']
    for power in range(low, low + span + 1):
        x = across(10.0**power)
        parts.append(f'<path d="M{x:.1f} {top + 22} V{bottom - 6}" stroke="#e3e3e3"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 10}" text-anchor="middle" fill="#666">{10.0**power:,g}</text>')
    for index, row in enumerate(rows):
        y = top + (index + 1) * ROW + 4
        mark = " (noisy)" if row.noisy else ""
        parts.append(f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{html.escape(row.title + mark)}</text>')
        parts.append(f'<path d="M{LEFT} {y} H{WIDTH - RIGHT}" stroke="#f1f1f1"/>')
        if row.cell.kind == "latency" and "memcpy" in row.limits:
            parts.append(f'<path d="M{across(row.limits["memcpy"]):.1f} {y - 9} v18" stroke="#222" stroke-width="2"/>')
        for line in reversed(row.lines):
            if line.median:
                radius = 7 if line.peer == OWN else 5
                label = html.escape(f"{line.peer}: {line.median:,.3g}")
                parts.append(
                    f'<circle cx="{across(line.median):.1f}" cy="{y}" r="{radius}" fill="{colours[line.peer]}">'
                    f"<title>{label}</title></circle>"
                )
    return parts
