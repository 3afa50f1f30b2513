"""Pictures of a report for the documentation, in headless Chromium: light and dark, desktop and phone.

python tools/screenshot_report.py report.html [-o docs/images] [--chromium chromium]
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

LARGEST = 300_000  # bytes of a picture that a page of documentation should load
DESKTOP, PHONE = (1280, 1500), (390, 1700)  # pixels
# Windows are at least 500 pixels wide, so a phone is a frame within a page.
FRAME = (
    '<body style="margin:0;background:{back}"><iframe src="{page}" style="width:{width}px;height:{height}px;border:0">'
)
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
        frame = Path(folder) / "frame.html"
        address = f"{page.absolute().as_uri()}#{theme}"
        frame.write_text(FRAME.format(back="#fff", page=address, width=width, height=height))
        whole = Path(folder) / "whole.png"
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *("--disable-background-networking", "--virtual-time-budget=8000", f"--user-data-dir={folder}/profile"),
            *(f"--window-size={max(width, 500)},{height}", f"--screenshot={whole}", frame.as_uri()),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=180)
        save_small(whole, picture, width, height)


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
    options.add_argument("--chromium", default="chromium", help="the browser's command")
    chosen = options.parse_args()
    if not chosen.report.is_file():
        raise SystemExit(f"there is no report {chosen.report}; make one with `thinwire report results.jsonl`.")
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name, (size, theme) in SHOTS.items():
        take(chosen.chromium, chosen.report, chosen.output / f"{name}.png", size, theme)
        print(chosen.output / f"{name}.png", flush=True)


if __name__ == "__main__":
    main()
