"""The built site in headless Chromium: ``python docs/check.py SITE SCREENSHOTS [PAGE ...]``; ``make docs-check``.

Every page, or those named (``gallery/index``), is opened 1280 pixels wide, light and dark, and 400 pixels wide. No page
may be wider than the window, no picture may be missing, and axe-core may find no serious fault. Chromium is the
installed one, or Playwright's own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Width, colours, and the rules of axe-core: all; colours alone; none, as a narrow page has the same elements.
VIEWS = [(1280, "light", {}), (1280, "dark", {"runOnly": ["color-contrast"]}), (400, "light", None)]

#: What the theme makes, not we: search results, pages of source.
LEFT_OUT = ("genindex", "py-modindex", "search", "_modules", "_static")

#: Elements that reach beyond the window although nothing that they are in scrolls.
WIDE = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const scrolled = node => {
    for (let n = node.parentElement; n && n !== document.body; n = n.parentElement)
      if (["auto", "scroll", "hidden"].includes(getComputedStyle(n).overflowX)) return true;
    return false;
  };
  return [...document.querySelectorAll("body *")]
    .filter(node => node.getBoundingClientRect().right > width + 1 && !scrolled(node))
    .map(node => node.tagName + "." + node.className).slice(0, 5).concat(["page"]);
}"""

MISSING = """() => [...document.images]
  .filter(image => getComputedStyle(image).display !== "none" && !(image.complete && image.naturalWidth > 0))
  .map(image => image.src.slice(0, 80))"""


def pages(site: Path) -> list[Path]:
    """What people read."""
    found = sorted(site.rglob("*.html"))
    return [page for page in found if not page.relative_to(site).as_posix().startswith(LEFT_OUT)]


def faults(page: Any, rules: dict[str, Any] | None) -> Iterator[str]:
    """What is wrong with the page that is open."""
    from axe_playwright_python.sync_playwright import Axe

    yield from (f"wider than the window: {name}" for name in page.evaluate(WIDE))
    yield from (f"no picture: {source}" for source in page.evaluate(MISSING))
    if rules is None:
        return
    for found in Axe().run(page, options=rules).response["violations"]:
        if found["impact"] in ("serious", "critical"):
            where = [node["target"] for node in found["nodes"][:3]]
            yield f"{found['impact']}: {found['id']}, {len(found['nodes'])} times, at {where}"


def main(argv: list[str]) -> int:
    """1, after a line for each fault, where there is any."""
    from playwright.sync_api import sync_playwright

    site, shots = Path(argv[0]).resolve(), Path(argv[1])
    opened = [site / f"{name}.html" for name in argv[2:]] or pages(site)
    shots.mkdir(parents=True, exist_ok=True)
    installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    count = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        for width, scheme, rules in VIEWS:
            page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
            for path in opened:
                page.goto(path.as_uri(), wait_until="load")
                name = path.relative_to(site).with_suffix("").as_posix()
                for fault in faults(page, rules):
                    print(f"{name}, {width}, {scheme}: {fault}", flush=True)
                    count += 1
                page.screenshot(path=shots / f"{name.replace('/', '-')}-{width}-{scheme}.png", full_page=True)
        browser.close()
    print(f"{len(opened)} pages, {len(VIEWS)} views, {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
