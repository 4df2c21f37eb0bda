"""Draw docs/speed.svg from benchmarks/results.md: a bar for each program, in tokens/s. Of our own rows only those that
differ are shown.

python benchmarks/picture.py
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "speed.svg"
WIDTH, LEFT, RIGHT = 760, 250, 70
SHOWN = (
    "fineweb.py's loop",
    "gigatoken's own file path",
    "bare loop, a process for each core",
    "fineweb-shards, parquet",
    "fineweb-shards, text",
    "fineweb-shards, JSON lines",
    "fineweb-shards, .jsonl.gz",
    "fineweb-shards, --engine tiktoken",
)
TOP, ROW, BAR = 64, 26, 17
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .small { font-size: 12px; fill: #59636e }
  .ours { fill: #1a7f64 }
  .others { fill: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #9198a1 }
    .ours { fill: #3fb98f }
    .others { fill: #6e7681 }
  }
"""


def draw_picture() -> None:
    text = (HERE / "results.md").read_text()
    machine = next(line for line in text.splitlines() if re.match(r"\d+ cores", line))
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([\d.]+) \| [\d.]+ \|", text, re.M))
    PICTURE.write_text(svg_of([(name, rows[name]) for name in SHOWN if name in rows], machine))


def svg_of(rows: list[tuple[str, str]], machine: str) -> str:
    """The picture; a speed is written as it stands in the table."""
    height = TOP + ROW * len(rows) + 12
    scale = (WIDTH - LEFT - RIGHT) / max(float(speed) for _, speed in rows)
    bars = [bar_of(number, name, speed, float(speed) * scale) for number, (name, speed) in enumerate(rows)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
            '<title id="title">Million tokens per second, by program</title>',
            f"<style>{STYLE}</style>",
            '<text class="title" x="12" y="26">Million tokens per second, start-up excluded</text>',
            f'<text class="small" x="12" y="46">{escape(machine)}</text>',
            *bars,
            "</svg>\n",
        ]
    )


def bar_of(number: int, name: str, speed: str, length: float) -> str:
    top = TOP + ROW * number
    kind = "ours" if name.startswith("fineweb-shards") else "others"
    line = top + BAR - 4
    return (
        f'<text x="{LEFT - 10}" y="{line}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{max(length, 1):.1f}" height="{BAR}" rx="2"/>'
        f'<text x="{LEFT + length + 8:.1f}" y="{line}">{speed}</text>'
    )


if __name__ == "__main__":
    draw_picture()
