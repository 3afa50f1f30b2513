"""The page in a real browser: it draws, without errors, and fits a phone."""

import json
import shutil
import subprocess
import sys
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.report.made_up import failed_run, write_results
from thinwire_lab.report.page import write_page

CHROMIUM = shutil.which("chromium")
QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--virtual-time-budget=5000",
]  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# Goes into the page: tells the page around it what the browser made of it.
SPY = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => errors.push("blocked: " + event.blockedURI));
setTimeout(() => {
  const width = document.documentElement;
  const plots = [...document.querySelectorAll("[role=img]")];
  const chips = [...document.querySelectorAll(".chips button")];
  chips[0].dispatchEvent(new Event("dblclick"));
  const alone = chips.filter((chip) => chip.ariaPressed === "true").length;
  chips[0].dispatchEvent(new Event("dblclick"));
  chips[0].click();
  const heads = [...document.querySelectorAll("thead th")];
  const accuracy = heads.find((head) => head.textContent.startsWith("Accuracy"));
  const seen = accuracy.getBoundingClientRect();
  heads.find((head) => head.textContent.startsWith("Bytes")).querySelector("button").click();
  parent.postMessage(JSON.stringify({
    errors, drawn: width.dataset.drawn, room: width.clientWidth, wanted: width.scrollWidth,
    marks: Object.fromEntries(plots.map((p) => [p.id, p.querySelectorAll(".point, .js-line, path").length])),
    spill: plots.filter((p) => p.querySelector(".main-svg").getBoundingClientRect().width > p.clientWidth + 1).length,
    alone, hidden: document.querySelectorAll(".chips [aria-pressed=false]").length,
    first: document.querySelector("tbody th").textContent,
    back: getComputedStyle(document.body).backgroundColor,
    accuracyEnds: seen.right,
    unnamed: [...document.querySelectorAll("button")].filter((b) => !(b.textContent.trim() || b.ariaLabel)).length,
    silent: plots.filter((p) => !p.ariaLabel || p.ariaLabel.length < 30).length,
    scopes: [...document.querySelectorAll("table th")].filter((th) => !["col", "row"].includes(th.scope)).length,
    caption: document.querySelector("table caption").textContent, title: document.title,
    headings: [...document.querySelectorAll("h1, h2")].map((h) => h.tagName).join(" "),
    firstCard: document.querySelector(".card .what").textContent,
    focusable: [...document.querySelectorAll("button")].filter((b) => b.tabIndex < 0).length,
  }), "*");
}, 2500);
</script>"""
FRAME = """<body style="margin:0"><iframe src="{page}" style="width:{width}px;height:3000px;border:0"></iframe>
<script>addEventListener("message", (event) => {{ document.body.dataset.told = event.data }})</script>"""


def chromium(folder: Path, *options: str) -> str:
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={folder / 'profile'}", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    write_page(
        write_results(folder / "r.jsonl", steps=60, extra=failed_run("powersgd", "gone")), folder / "report.html"
    )
    page = (folder / "report.html").read_text(encoding="utf-8")
    (folder / "spied.html").write_text(page.replace("<head>", f"<head>{SPY}", 1), encoding="utf-8")
    return folder


@cache
def told_by(site: Path, width: int, theme: str) -> dict[str, Any]:
    """What the page tells of itself in a window of this width."""
    frame = site / f"frame-{width}-{theme}.html"
    frame.write_text(FRAME.format(page=f"spied.html#{theme}", width=width))
    dom = chromium(site, f"--window-size={max(width, 600)},3000", "--dump-dom", frame.as_uri())
    told: dict[str, Any] = json.loads(unescape(dom.split('data-told="')[1].split('"')[0]))
    return told


@pytest.mark.parametrize(
    ("width", "theme", "back"),
    [(1280, "light", "rgb(245, 246, 248)"), (1280, "dark", "rgb(14, 17, 22)"), (390, "dark", "rgb(14, 17, 22)")],
)
def test_draws_and_fits(site: Path, width: int, theme: str, back: str) -> None:
    told = told_by(site, width, theme)
    assert told["errors"] == []
    assert told["drawn"] == "yes"
    assert told["room"] == width
    assert told["wanted"] <= width
    assert told["spill"] == 0
    assert set(told["marks"]) == {"accuracy", "loss", "layers", "speed", "parts"}
    assert min(told["marks"].values()) > 8
    assert (told["alone"], told["hidden"]) == (1, 1)
    assert told["first"].startswith("adacomp")  # fewest bytes, after a click on that heading
    assert told["back"] == back
    assert 0 < told["accuracyEnds"] <= width  # seen without scrolling, on a phone too


def test_keyboard_and_screen_readers(site: Path) -> None:
    told = told_by(site, 1280, "light")
    assert told["title"].startswith("thinwire")
    assert told["headings"].startswith("H1 H2")
    assert told["headings"].count("H1") == 1
    assert (told["unnamed"], told["silent"], told["scopes"], told["focusable"]) == (0, 0, 0, 0)
    assert told["caption"] == "Accuracy, speed and bytes of every contender"


def test_the_first_card_is_the_time_to_the_target(site: Path) -> None:
    assert told_by(site, 1280, "light")["firstCard"] == "Time to 85 % accuracy"


def test_pictures_for_the_documentation_end_below_a_chart(site: Path, tmp_path: Path) -> None:
    """The picture's last line is the margin below a panel: one colour from side to side, that of the page."""
    script = Path(__file__).resolve().parents[2] / "tools" / "screenshot_report.py"
    command = [sys.executable, str(script), str(site / "report.html"), "-o", str(tmp_path), "--only", "report"]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    with Image.open(tmp_path / "report.png") as picture:
        image = picture.convert("RGB")
        assert image.width == 1280
        bottom = {image.getpixel((x, image.height - 1)) for x in range(image.width)}
        assert bottom == {(245, 246, 248)}
        middle = {image.getpixel((x, image.height - 100)) for x in range(image.width)}
        assert len(middle) > 1  # the panel itself


def test_screenshot(site: Path) -> None:
    picture = site / "page.png"
    chromium(site, "--window-size=1280,1200", f"--screenshot={picture}", (site / "report.html").as_uri())
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000  # an empty page of this size has a tenth of that
