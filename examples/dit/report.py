"""The report: one HTML file with inline SVG curves and inline PNG grids, readable in light and dark, no scripts."""

from __future__ import annotations

import base64
import html
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Chosen to stay apart for colour-blind readers, on white and on near-black alike.
COLORS = ("#d1495b", "#2e86ab", "#e08e0b", "#3c9d6b", "#8e6bbf", "#6c8294", "#b5651d")

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --faint: #6b7580; --line: #d5dae0; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --faint: #98a2ac; --line: #3a4149; --paper: #16191d; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p { max-width: 46rem; } .faint, figcaption { color: var(--faint); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 12px; }
svg .grid { stroke: var(--line); }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .45em; }
.grids { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: 1.2rem; }
figure { margin: 0; } img { width: 100%; image-rendering: pixelated; border-radius: 4px; }
"""


def encode_png(pixels: Tensor) -> bytes:
    """An 8-bit grey PNG of `pixels`, uint8 `[height, width]`."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + bytes(row.tolist()) for row in pixels)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def image_grid(images: Tensor, columns: int = 10, scale: int = 4) -> Tensor:
    """Images `[count, size, size]` in [-1, 1] side by side, one pixel between them: uint8 `[height, width]`."""
    count, size, _ = images.shape
    rows = math.ceil(count / columns)
    grid = torch.full((rows * (size + 1) - 1, columns * (size + 1) - 1), 96, dtype=torch.uint8)
    for index, image in enumerate(images.add(1).mul(127.5).round().to(torch.uint8)):
        top, left = index // columns * (size + 1), index % columns * (size + 1)
        grid[top : top + size, left : left + size] = image
    return grid.repeat_interleave(scale, 0).repeat_interleave(scale, 1)


@dataclass(frozen=True)
class Curve:
    """A named line: (step, loss) points, the mean over seeds."""

    label: str
    points: Sequence[tuple[int, float]]


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers inside `[low, high]`, about `count` of them."""
    rough = (high - low) / max(count, 1)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= rough)
    first = math.ceil(low / step)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def curves_svg(curves: Sequence[Curve], width: int = 900, height: int = 380) -> str:
    """A line chart of the curves. The loss axis is cut above so that the differences at the end can be seen."""
    left, right, top, bottom = 60, 15, 15, 40
    points = [point for curve in curves for point in curve.points if math.isfinite(point[1])]
    if not points:
        return "<p>No run reached an evaluation.</p>"
    last_step = max(step for step, _ in points)
    low = min(loss for _, loss in points)
    ends = [curve.points[-1][1] for curve in curves if curve.points and math.isfinite(curve.points[-1][1])]
    high = min(max(loss for _, loss in points), low + 4 * max(max(ends) - low, 0.05 * low))
    low, high = low - 0.05 * (high - low), high + 0.02 * (high - low)

    def x(step: float) -> float:
        return left + (width - left - right) * step / last_step

    def y(loss: float) -> float:
        return top + (height - top - bottom) * (high - loss) / (high - low)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Held-out loss over training steps">']
    parts.append(f'<clipPath id="plot"><rect x="{left}" y="{top}" width="{width - left - right}" ')
    parts.append(f'height="{height - top - bottom}"/></clipPath>')
    loss_ticks = _ticks(low, high, 6)
    decimals = max(len(f"{tick:.6f}".rstrip("0").partition(".")[2]) for tick in loss_ticks)
    for tick in loss_ticks:
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.{decimals}f}</text>')
    for tick in _ticks(0, last_step, 8):
        parts.append(f'<text x="{x(tick):.1f}" y="{height - bottom + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 4}" text-anchor="middle">step</text>')
    for index, curve in enumerate(curves):
        path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve.points if math.isfinite(loss))
        parts.append(f'<polyline clip-path="url(#plot)" fill="none" stroke="{COLORS[index % len(COLORS)]}" ')
        parts.append(f'stroke-width="2" stroke-linejoin="round" points="{path}"/>')
    parts.append("</svg>")
    return "".join(parts)


def _swatch(index: int) -> str:
    return f'<span class="swatch" style="background:{COLORS[index % len(COLORS)]}"></span>'


def render(
    title: str,
    introduction: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    curves: Sequence[Curve],
    grids: Mapping[str, Tensor],
    notes: Sequence[str],
) -> str:
    """The whole page. Row `i` of the table and curve `i` belong together and share a colour."""
    escape = html.escape
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{_swatch(index) if not column else ''}{escape(cell)}</td>" for column, cell in enumerate(row))
        + "</tr>"
        for index, row in enumerate(rows)
    )
    figures = "".join(
        f'<figure><img alt="{escape(name)}" src="data:image/png;base64,'
        f'{base64.b64encode(encode_png(image_grid(images))).decode()}"><figcaption>{escape(name)}</figcaption></figure>'
        for name, images in grids.items()
        if len(images)
    )
    legend = " &nbsp; ".join(f"{_swatch(index)}{escape(curve.label)}" for index, curve in enumerate(curves))
    remarks = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(introduction)}</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<h2>Held-out loss of the averaged weights</h2>
<p class="faint">{legend}</p>
{curves_svg(curves)}
<h2>Samples</h2>
<div class="grids">{figures}</div>
<h2>How it was measured</h2>
<ul class="faint">{remarks}</ul>
</body>
</html>
"""
