"""Sphinx: Markdown pages whose code is executed, the API from docstrings. ``make docs`` makes errors of warnings."""

import base64
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# for the kernels that execute the pages
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "docs"), *filter(None, [os.environ.get("PYTHONPATH")])])

import cvrarray  # noqa: E402

project = "cvrarray"
author = copyright = "cvrarray developers"
version = release = cvrarray.__version__

extensions = ["myst_nb", "sphinx_design", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "gpu-report"]
templates_path: list[str] = []

# No page may show an error, and none is taken from a cache: what is read here was computed by this version.
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables among the outputs
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it
autodoc_mock_imports = ["torch"]  # which nobody needs for the docstrings of what takes its tensors
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = "cvrarray"
html_theme_options = {
    "show_toc_level": 2,
    "show_nav_level": 2,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 5,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
html_sidebars = {"index": []}  # all other pages: those of their section
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False


def tiles(app, error):
    """Fill the tiles of the gallery's index with the first picture of each page, light and dark."""
    index = Path(app.outdir, "gallery", "index.html")
    if error or not index.exists():
        return
    text = index.read_text()
    for page in index.parent.glob("*.html"):
        pictures = ""
        for theme in ("light", "dark"):
            if found := re.search(rf'<img class="only-{theme} plot"[^>]*base64,([^"]+)"', page.read_text()):
                name = f"{page.stem}-{theme}.png"
                (index.parent / name).write_bytes(base64.b64decode(found[1]))
                pictures += f'<img class="only-{theme} plot" alt="" src="{name}"/>'
        text = text.replace(f'<div class="tile {page.stem}"></div>', f'<div class="tile">{pictures}</div>')
    index.write_text(text)


def setup(app):
    app.connect("build-finished", tiles)
