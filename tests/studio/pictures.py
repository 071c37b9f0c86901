"""Takes the pictures of docs/how-to/studio.md: python -m tests.studio.pictures ADDRESS FOLDER, with a studio at ADDRESS."""

import io
import math
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.studio.browser import executable


def save(page, path, full=False):
    """A screenshot in 256 colours, which is small."""
    shot = Image.open(io.BytesIO(page.screenshot(full_page=full))).convert("RGB")
    shot.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, path.stat().st_size // 1024, "KiB")


def drawn_ring(page):
    box = page.locator("canvas.plane").bounding_box()
    for radius, turn in ((0.28, 0.0), (0.12, 0.5)):
        page.mouse.move(box["x"] + box["width"] * (0.5 + radius), box["y"] + box["height"] * 0.5)
        page.mouse.down()
        for i in range(90):
            angle = 2 * math.pi * (i / 90 + turn)
            x, y = 0.5 + radius * math.cos(angle), 0.5 + radius * math.sin(angle)
            page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)
        page.mouse.up()


def take_all(page, address, out):
    page.goto(address)
    page.get_by_role("link", name="levels.gif").wait_for()
    page.get_by_label("Contours").check()
    page.get_by_label("Hold by the spring").check()
    page.locator("#plane-run").click()
    page.wait_for_timeout(4000)
    page.locator("#plane-run").click()
    save(page, out / "studio-plane.png")
    page.get_by_role("button", name="Draw your own data").click()
    drawn_ring(page)
    page.locator("#plane-train").click()
    page.wait_for_selector("html[data-iteration]", state="attached", timeout=60_000)
    page.wait_for_timeout(25_000)
    save(page, out / "studio-drawing.png")
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector("#plane-training:has-text('Stopped')", timeout=60_000)
    page.goto(address + "#images")
    page.reload()
    page.locator("#theme").click()
    page.locator("#images-model").select_option(sys.argv[3] if len(sys.argv) > 3 else "mnist")
    page.locator("#draw-samples").click()
    page.get_by_role("link", name="sample.npz").wait_for(timeout=180_000)
    page.get_by_role("button", name="Inpaint").click()
    page.get_by_role("button", name="Hide the right half").click()
    page.get_by_role("slider", name="Sweeps").fill("1")
    page.locator("#fill-in").click()
    page.get_by_role("link", name="inpaint.npz").wait_for(timeout=180_000)
    page.mouse.move(5, 5)
    save(page, out / "studio-images.png")
    page.locator("#theme").click()
    page.get_by_role("link", name="Runs").click()
    page.locator("#runs-first").select_option("digits")
    page.locator("#runs-second").select_option("mnist")
    page.get_by_role("heading", name="mnist", exact=True).wait_for()
    page.wait_for_timeout(1500)
    save(page, out / "studio-runs.png")


def main():
    address, out = sys.argv[1], Path(sys.argv[2])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 840})
        take_all(page, address, out)
        browser.close()


if __name__ == "__main__":
    main()
