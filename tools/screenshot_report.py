"""Pictures of a report for the documentation, in headless Chromium: light and dark, desktop and phone.

A picture ends below the last panel that fits into it, so that no chart is cut.

python tools/screenshot_report.py report.html [-o docs/images] [--chromium chromium]
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

LARGEST = 300_000  # bytes of a picture that a page of documentation should load
DESKTOP, PHONE = (1280, 2000), (390, 1700)  # pixels, the largest
# Windows are at least 500 pixels wide, so a phone is a frame within a page. The frame tells where the page's parts end.
FRAME = """<body style="margin:0;background:#fff">
<iframe src="{page}" style="width:{width}px;height:{height}px;border:0"></iframe>
<script>setTimeout(() => {{
  const parts = document.querySelector("iframe").contentDocument.querySelectorAll(".cards, .panel");
  document.body.dataset.ends = [...parts].map((part) => Math.ceil(part.getBoundingClientRect().bottom)).join(" ");
}}, 4000)</script>"""
MARGIN = 16  # pixels below the last part
SHOTS = {
    "report": (DESKTOP, "light"),
    "report-dark": (DESKTOP, "dark"),
    "report-phone": (PHONE, "light"),
    "report-phone-dark": (PHONE, "dark"),
}


def take(chromium: str, page: Path, picture: Path, size: tuple[int, int], theme: str) -> None:
    """One picture of the top of the page, as wide as the device."""
    width, height = size
    with tempfile.TemporaryDirectory() as folder:
        frame, whole = Path(folder) / "frame.html", Path(folder) / "whole.png"
        frame.write_text(FRAME.format(page=f"{page.absolute().as_uri()}#{theme}", width=width, height=height))
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *("--disable-background-networking", "--virtual-time-budget=8000", f"--user-data-dir={folder}/profile"),
            *("--allow-file-access-from-files", f"--window-size={max(width, 500)},{height}"),
            *("--dump-dom", f"--screenshot={whole}", frame.as_uri()),
        ]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout
        save_small(whole, picture, width, cut_height(told, height))


def cut_height(dom: str, height: int) -> int:
    """Where the last part ends that is in the picture as a whole."""
    found = re.search(r'data-ends="([\d ]+)"', dom)
    ends = [int(end) + MARGIN for end in found[1].split()] if found else []
    inside = [end for end in ends if end <= height]
    if not inside:
        raise SystemExit(f"no part of the page ends within {height} pixels; is it a report of `thinwire report`?")
    return max(inside)


def save_small(whole: Path, picture: Path, width: int, height: int) -> None:
    """Cut what is beside the phone; a palette of 256 colours is enough for a page, and a third of the bytes."""
    from PIL import Image

    with Image.open(whole) as image:
        cut = image.convert("RGB").crop((0, 0, width, height))
        cut.quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)
    if (size := picture.stat().st_size) > LARGEST:
        raise SystemExit(f"{picture} has {size} bytes, more than {LARGEST}; make the window smaller.")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("report", type=Path, help="page that `thinwire report` wrote")
    options.add_argument("-o", "--output", type=Path, default=Path("docs/images"))
    options.add_argument("--only", choices=SHOTS, action="append", help="this picture alone; may be repeated")
    options.add_argument("--chromium", default="chromium", help="the browser's command")
    chosen = options.parse_args()
    if not chosen.report.is_file():
        raise SystemExit(f"there is no report {chosen.report}; make one with `thinwire report results.jsonl`.")
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name in chosen.only or SHOTS:
        size, theme = SHOTS[name]
        take(chosen.chromium, chosen.report, chosen.output / f"{name}.png", size, theme)
        print(chosen.output / f"{name}.png", flush=True)


if __name__ == "__main__":
    main()
