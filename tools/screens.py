"""Look at the built site in a real browser: pictures in light, dark and phone width, and what a picture cannot say.

`nox -s screens` after `nox -s docs`. Needs a Chromium: the one on PATH, else the one that Playwright fetches. Each page
is checked at each width: nothing is wider than the page, no script failed, nothing was asked of another host, and the
dark scheme is dark. Pictures lie in out/screens/.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from workspace import ROOT

if TYPE_CHECKING:
    from pathlib import Path

OUT = ROOT / "out" / "screens"
VIEWS: dict[str, tuple[int, int, str]] = {
    "light": (1280, 900, "light"),
    "dark": (1280, 900, "dark"),
    "phone": (390, 844, "light"),
}
WIDTH = "[document.documentElement.scrollWidth, window.innerWidth]"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
TEXT_NEAR_BACKGROUND = """() => {
  const light = (c) => { const [r, g, b] = c.match(/[0-9.]+/g).map(Number); return 0.2126*r + 0.7152*g + 0.0722*b; };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll('.se-chip, .md-content p, .md-content td, .se-plot text')]
    .filter((e) => Math.abs(light(getComputedStyle(e).color) - ground) < 60).map((e) => e.textContent.slice(0, 40));
}"""


def pages(site: Path) -> list[Path]:
    """The pages to look at: every one that a reader can open, one for each kind of the generated ones."""
    return [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]


def look(browser: Any, page: Path, name: str) -> list[str]:
    """Take one picture; what is wrong with the page in this view."""
    width, height, scheme = VIEWS[name]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = context.new_page()
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(f"a script failed: {error}"))
    tab.on("request", lambda request: wrong.extend([f"asks for {request.url}"] * request.url.startswith("http")))
    tab.goto(page.as_uri())
    tab.wait_for_timeout(200)
    wide, inside = tab.evaluate(WIDTH)
    if wide > inside:
        wrong.append(f"{wide} pixels wide in a window of {inside}")
    ground = [int(float(part)) for part in tab.evaluate(BACKGROUND).strip("rgba()").split(",")[:3]]
    if (sum(ground) < 3 * 128) != (scheme == "dark"):
        wrong.append(f"background rgb{tuple(ground)} in the {scheme} scheme")
    wrong += [f"text hardly differs from its background: {text!r}" for text in tab.evaluate(TEXT_NEAR_BACKGROUND)[:3]]
    target = OUT / f"{'-'.join(page.relative_to(ROOT / 'site').with_suffix('').parts)}-{name}.png"
    tab.screenshot(path=str(target), full_page=True)
    context.close()
    return wrong


def main() -> int:
    """Exit status 1 where a page is wrong in a view."""
    from playwright.sync_api import sync_playwright

    site = ROOT / "site"
    if not (site / "index.html").is_file():
        print("no built site: run `nox -s docs` first", file=sys.stderr)
        return 2
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    found = []
    own = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=own, args=["--no-sandbox"])
        for page in pages(site):
            for name in VIEWS:
                found += [f"{page.relative_to(site)} ({name}): {what}" for what in look(browser, page, name)]
        browser.close()
    for line in found:
        print(line, file=sys.stderr)
    print(
        f"screens: {len(pages(site))} pages in {len(VIEWS)} views, {len(found)} things wrong, pictures in out/screens"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
