"""Checks a built site: every link and anchor leads somewhere, and no page loads anything from another server.

python tools/check_site.py build/site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}  # by opening the page
QUIET = {"canonical", "next", "prev", "alternate", "edit"}  # relations of <link> that load nothing


class Page(HTMLParser):
    """The names in a page, what it links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors = {"", "__skip"}
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        address = found.get(LOADS.get(tag, ""))
        if address and not (tag == "link" and found.get("rel") in QUIET):
            self.loads.append(address)


def faults_of(site: Path) -> list[str]:
    """One sentence for each link that leads nowhere and each file that comes from another server."""
    reports = site / "files"  # whole pages of their own, brought along as they are
    paths = [path for path in sorted(site.rglob("*.html")) if reports not in path.parents and path.name != "404.html"]
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in paths}
    faults = []
    for path, page in pages.items():
        shown = path.relative_to(site.resolve())
        for address in page.loads:
            if urlsplit(address).netloc:
                faults.append(f"{shown} loads {address} from another server.")
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.is_file():
                faults.append(f"{shown} links {address}, and there is no such file.")
            elif goal in pages and unquote(parts.fragment) not in pages[goal].anchors:
                faults.append(f"{shown} links {address}, and that page has no such anchor.")
    for sheet in sorted(site.rglob("*.css")):
        text = sheet.read_text(encoding="utf-8")
        faults += [
            f"{sheet.relative_to(site)} loads {mark}..." for mark in ("url(http", "url(//", "@import") if mark in text
        ]
    return faults


def main() -> None:
    if len(sys.argv) != 2 or not (site := Path(sys.argv[1])).joinpath("index.html").is_file():
        raise SystemExit(
            "check_site.py needs the folder of a built site, with its index.html; build it with `make docs`."
        )
    if faults := faults_of(site):
        raise SystemExit("\n".join(faults))
    print(f"{site}: links, anchors and loaded files are right.")


if __name__ == "__main__":
    main()
