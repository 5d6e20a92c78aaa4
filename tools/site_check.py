"""Check that a built site asks nothing of the network: no script, style, font or picture from another host.

Links that a reader may follow are left alone; only what a browser loads by itself counts.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
# A link element loads something only with these relations; a canonical address, for one, is not fetched.
LOADED_RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "preconnect",
    "dns-prefetch",
    "prefetch",
    "modulepreload",
    "manifest",
}
CSS_URL = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)
ELSEWHERE = re.compile(r"^(?:https?:)?//", re.IGNORECASE)


class _Page(HTMLParser):
    """Collects the addresses that a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at one element."""
        values = {name: value or "" for name, value in attrs}
        address = values.get(LOADS.get(tag, ""), "")
        if tag == "link" and LOADED_RELATIONS & set(values.get("rel", "").lower().split()):
            address = values.get("href", "")
        self.found += [address] if ELSEWHERE.match(address) else []
        self.found += CSS_URL.findall(values.get("style", ""))


def requests(site: Path) -> list[str]:
    """Each address outside the site that one of its pages or styles loads, as "file: address"."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Page()
            text = path.read_text(encoding="utf-8")
            page.feed(text)
            addresses = page.found + CSS_URL.findall("".join(re.findall(r"<style.*?</style>", text, re.DOTALL)))
        elif path.suffix == ".css":
            addresses = CSS_URL.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        found += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return found


def main(argv: list[str] | None = None) -> int:
    """`site_check.py SITE`: exit status 1 names each request; 2 when there is no site."""
    (name,) = argv or sys.argv[1:2] or ["site"]
    site = Path(name)
    if not (site / "index.html").is_file():
        print(f"{name!r} holds no built site: run `nox -s docs`", file=sys.stderr)
        return 2
    found = requests(site)
    for line in found:
        print(line, file=sys.stderr)
    print(f"site: {len(list(site.rglob('*.html')))} pages, {len(found)} requests to other hosts")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
