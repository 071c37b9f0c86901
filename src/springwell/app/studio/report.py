"""One run as a single HTML file that needs nothing else: its data, its pictures, and the page's own modules and style."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from springwell.app.studio.runs import as_address, details, picture

STATIC = Path(__file__).parent / "static"
# In an order in which each needs only those before it.
MODULES = ("dom.js", "colours.js", "charts.js", "rundetail.js")
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export (?=const|let|function|class)", re.MULTILINE)


def joined_modules() -> str:
    """The modules that show a run, as one."""
    parts = [(STATIC / name).read_text() for name in MODULES]
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", part)) for part in parts)


def report(name: str, folder: Path) -> str:
    """The HTML of a run's page.

    Args:
        name: What the run is called.
        folder: Where it is.
    """
    run = details(name, folder)
    pictures = {file: as_address(picture(folder, file)) for file in (run["previews"] or run["pictures"])}
    # A text of the run that ends the script's element would be read as HTML.
    data = json.dumps({"run": run, "pictures": pictures}, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(run["title"])} · Springwell</title>
<style>
{(STATIC / "studio.css").read_text()}</style>
</head>
<body>
<main id="main"></main>
<script id="data" type="application/json">{data}</script>
<script type="module">
{joined_modules()}
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const {{ run, pictures }} = JSON.parse(document.getElementById("data").textContent);
document.getElementById("main").append(runDetail(run, (file) => pictures[file]));
</script>
</body>
</html>
"""
