"""Draw docs/terminal.svg: a terminal in the middle of a real build.

python benchmarks/terminal_picture.py [FOLDER]

A build of the parquet files in FOLDER (default: FINEWEB_SHARDS_CORPUS), each linked several times so that it takes long
enough, is recorded in a pseudo-terminal. The picture is the frame nearest to 60 %. Bars are drawn as rectangles, and
the width of a text follows from the columns it takes, because fonts differ in both.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from collections.abc import Iterator
from html import escape
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "terminal.svg"
FILES, COLUMNS, ROWS = 56, 96, 40
COMMAND = "fineweb-shards build my-data --out tokens"
CELL, LINE, LEFT, TOP = 8.0, 20, 20, 62
EIGHTHS = " ▏▎▍▌▋▊▉█"
STYLE = """
  text { font: 13.3px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
  text { fill: #e6edf3 }
  .window { fill: #0d1117; stroke: #30363d }
  .prompt { fill: #3fb98f }
  .name { fill: #9198a1 }
  .bar { fill: #3fb98f }
  .track { fill: #21262d }
"""


def record(folder: Path) -> Iterator[list[str]]:
    """Run the command in a pseudo-terminal; yield the screen each time the program has drawn both bars."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "NO_COLOR": "1"}
        for name in ("CI", "COLUMNS", "LINES"):
            environment.pop(name, None)
        program = Path(sys.executable).parent / "fineweb-shards"
        os.execve(program, COMMAND.split(), environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    text = ""
    while True:
        try:
            text += os.read(terminal, 1 << 16).decode(errors="replace")
        except OSError:  # the program has ended
            break
        yield lines_of(text)
    os.waitpid(process, 0)


def lines_of(text: str) -> list[str]:
    """What a terminal shows: the program only moves up by whole lines and clears what is below."""
    lines: list[str] = []
    for piece in re.split(r"(\x1b\[\d*[AJ])", text):
        if up := re.fullmatch(r"\x1b\[(\d*)A", piece):
            del lines[len(lines) - int(up[1] or 1) :]
        elif not piece.startswith("\x1b"):
            lines += piece.replace("\r", "").splitlines()
    return [line for line in lines if line]


def share_of(lines: list[str]) -> int:
    """Per cent of the whole job, or -1 if it is not yet known how long it will take."""
    bars = [line for line in lines if line.startswith("total ") and line.endswith(" left")]
    found = re.search(r"(\d+)%\|", bars[-1]) if bars and lines[-1].startswith("shard ") else None
    return int(found[1]) if found else -1


def svg_of(lines: list[str]) -> str:
    width, height = round(2 * LEFT + COLUMNS * CELL), TOP + LINE * len(lines) + 24
    rows = [row_of(line, TOP + LINE * (number + 1)) for number, line in enumerate(lines)]
    buttons = "".join(
        f'<circle cx="{22 + 20 * n}" cy="22" r="6" fill="{color}"/>'
        for n, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">',
            '<title id="title">A build in a terminal: the plan, and two progress bars</title>',
            f"<style>{STYLE}</style>",
            f'<rect class="window" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9"/>',
            buttons,
            f"{text_of('$', 0, TOP, 'prompt')}{text_of(COMMAND, 2, TOP)}",
            *rows,
            "</svg>\n",
        ]
    )


def row_of(line: str, y: float) -> str:
    name, rest = re.match(r"(.{0,11})(.*)", line).groups()  # type: ignore[union-attr]
    if not (bar := re.search(r"\|([ ▏▎▍▌▋▊▉█]+)\|", rest)):
        return text_of(name.rstrip(), 0, y, "name") + text_of(rest, 11, y)
    start, end = 11 + bar.start(1), 11 + bar.end(1)
    filled = sum(EIGHTHS.index(character) for character in bar[1]) / 8
    return (
        text_of(name.rstrip(), 0, y, "name")
        + text_of(rest[: bar.start()], 11, y)
        + box_of(start, end - start, y, "track")
        + box_of(start, filled, y, "bar")
        + text_of(rest[bar.end() :].strip(), end + 2, y)
    )


def text_of(text: str, column: float, y: float, kind: str = "") -> str:
    indent = len(text) - len(text.lstrip())
    text = text.strip()
    if not text:
        return ""
    x, width = LEFT + (column + indent) * CELL, len(text) * CELL
    mark = f' class="{kind}"' if kind else ""
    return (
        f'<text{mark} x="{x:g}" y="{y:g}" textLength="{width:g}" lengthAdjust="spacingAndGlyphs">'
        f"{escape(text, quote=False)}</text>"
    )


def box_of(column: float, columns: float, y: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{LEFT + column * CELL:g}" y="{y - 11:g}" width="{columns * CELL:g}"'
        ' height="13" rx="2"/>'
    )


def main() -> None:
    source = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["FINEWEB_SHARDS_CORPUS"]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my-data").mkdir()
        for number, path in enumerate(islice(cycle(sorted(source.glob("*.parquet"))), FILES)):
            (Path(folder) / "my-data" / f"{number:03}_00000.parquet").symlink_to(path)
        frames = [frame for frame in record(Path(folder)) if share_of(frame) >= 0]
    PICTURE.write_text(svg_of(min(frames, key=lambda lines: abs(share_of(lines) - 60))))


if __name__ == "__main__":
    main()
