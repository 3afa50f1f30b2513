"""The documentation site in a real browser, opened from disk: it shows its pages, searches, and fits a phone."""

import importlib.util
import json
import os
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.report.test_browser import CHROMIUM, FRAME, chromium

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra `docs` is not installed"),
]

# Goes into the page: searches, then tells the page around it what the browser made of it.
SPY = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(String(event.message)));
setTimeout(() => {
  const query = document.querySelector("[data-md-component=search-query]");
  query.focus();
  query.value = "QUERY";
  for (const kind of ["keyup", "input"]) query.dispatchEvent(new KeyboardEvent(kind, {bubbles: true, key: "q"}));
}, 1500);
setTimeout(() => {
  const root = document.documentElement;
  parent.postMessage(JSON.stringify({
    errors, room: root.clientWidth, wanted: root.scrollWidth,
    title: document.querySelector(".md-content h1").firstChild.textContent.trim(),
    headings: [...document.querySelectorAll(".md-content h2")].map((heading) => heading.id),
    pictures: [...document.images].filter((image) => !image.complete || !image.naturalWidth).map((image) => image.src),
    found: [...document.querySelectorAll(".md-search-result__item h1, .md-search-result__item h2")]
      .map((heading) => heading.textContent.trim()),
    foreign: performance.getEntriesByType("resource").map((entry) => entry.name)
      .filter((name) => !name.startsWith("file:")),
  }), "*");
}, 4500);
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.mark.parametrize(
    ("page", "width", "title", "heading", "query", "found"),
    [
        ("index.html", 1280, "thinwire", "install", "draining", "GradiVeQ"),
        ("api/functions-and-classes.html", 1280, "Functions and classes", "thinwire.attach", "headroom", "attach"),
        (
            "systems/gradiveq.html",
            390,
            "GradiVeQ: coefficients in a learnt basis",
            "how-to-choose",
            "majority",
            "signSGD",
        ),
    ],
)
def test_a_page_shows_and_searches(
    site: Path, page: str, width: int, title: str, heading: str, query: str, found: str
) -> None:
    spied = (site / page).with_name(f"spied-{width}-{Path(page).name}")
    text = (site / page).read_text(encoding="utf-8")
    spied.write_text(text.replace("<head>", f"<head>{SPY.replace('QUERY', query)}", 1), encoding="utf-8")
    frame = spied.with_name(f"frame-{width}-{Path(page).name}")
    frame.write_text(FRAME.format(page=spied.name, width=width))
    dom = chromium(
        site, f"--window-size={max(width, 600)},3000", "--virtual-time-budget=8000", "--dump-dom", frame.as_uri()
    )
    told = json.loads(unescape(dom.split('data-told="')[1].split('"')[0]))
    assert told["errors"] == []
    assert told["title"] == title
    assert heading in told["headings"]
    assert told["pictures"] == []
    assert told["wanted"] <= told["room"] == width
    assert any(found in name for name in told["found"]), told["found"]
    assert told["foreign"] == []
