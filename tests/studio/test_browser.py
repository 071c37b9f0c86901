"""The studio in a real Chromium. Nothing here looks at a clock; what is waited for is what a person would wait for."""

import io
import math
import re

import numpy as np
import pytest

from tests.studio.browser import Cable, executable

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium is installed (Debian: apt install chromium)")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
LONG = 60_000
OURS = ("http://127.0.0.", "file:", "data:", "blob:")

# What has no name for those who cannot see it.
UNNAMED = """() => [...document.querySelectorAll("input, select, button, canvas, textarea, summary")].filter((one) => {
  if (one.closest("[hidden]")) return false;
  const label = one.labels?.[0]?.textContent ?? one.getAttribute("aria-label") ?? one.textContent;
  return !label.trim() && !one.closest("[aria-label]:is(button)");
}).map((one) => one.outerHTML)"""


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium, server):
    """Opens tabs that fail the test for whatever goes wrong in them."""
    problems, contexts = [], []

    def open_tab(hash_="", address=None, **options):
        context = chromium.new_context(**{"viewport": DESKTOP, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(LONG)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith(OURS) else problems.append(request.url))
        page.goto(f"{address or server.address}{hash_}")
        return page

    yield open_tab
    for context in contexts:
        context.close()
    # Refusals and a cut connection are what some tests are about; browsers write them to the console.
    expected = ("ERR_", "status of 400", "WebSocket connection")
    assert [problem for problem in problems if not any(words in problem for words in expected)] == []


def data(page, name):
    return page.locator("html").get_attribute(f"data-{name}")


def picture(canvas):
    """What a canvas shows, as bytes that can be compared."""
    return canvas.evaluate("one => one.toDataURL()")


def changed(page, canvas, before):
    """Waits until a canvas shows something else, and returns it."""
    for _ in range(600):
        if (after := picture(canvas)) != before:
            return after
        page.wait_for_timeout(100)
    raise AssertionError("the picture stays as it is")


def plane(tab, **options):
    page = tab("#plane", **options)
    page.wait_for_selector("html[data-plane-milliseconds]", state="attached")
    page.get_by_role("link", name="levels.gif").wait_for()
    return page


def sampled(page, num=4):
    """Draws samples of digits on the page Images."""
    page.locator("#images-model").select_option("digits")
    page.get_by_role("slider", name="Samples").fill(str(num))
    page.locator("#draw-samples").click()
    page.get_by_role("link", name="sample.npz").wait_for()


def arrays_of(page, name):
    with page.expect_download() as started:
        page.get_by_role("link", name=name).click()
    return np.load(io.BytesIO(started.value.path().read_bytes()))


def test_the_plane_opens_with_a_density_and_forgets_the_token(tab, server):
    page = plane(tab)
    assert server.token not in page.url
    assert page.evaluate("document.cookie") == ""
    canvas = page.locator("canvas.plane")
    colours = canvas.evaluate("one => new Set(one.getContext('2d').getImageData(0, 0, one.width, one.height).data).size")
    assert colours > 100


def test_the_level_slider_play_contours_arrows_and_spring_change_the_picture(tab):
    page = plane(tab)
    canvas, slider = page.locator("canvas.plane"), page.locator("#plane-level")
    seen = [picture(canvas)]
    slider.fill("3")
    seen.append(changed(page, canvas, seen[-1]))
    slider.press("ArrowLeft")
    assert slider.input_value() == "2"
    seen.append(changed(page, canvas, seen[-1]))
    for name in ("Contours", "Arrows of the score", "Hold by the spring"):
        page.get_by_label(name).check()
        seen.append(changed(page, canvas, seen[-1]))
    box = canvas.bounding_box()
    x, y = (box["x"] + box["width"] * (0.5 + 0.8 / 5.6), box["y"] + box["height"] * (0.5 - 0.8 / 5.6))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 150, y + 120, steps=4)
    page.mouse.up()
    seen.append(changed(page, canvas, seen[-1]))
    assert "Click on the plane" in page.locator("#plane-chains").inner_text()
    assert len(set(seen)) == len(seen)
    page.locator("#plane-play").click()
    page.get_by_role("button", name="Play").wait_for()
    assert slider.input_value() == "0"


def saved(page, button, out):
    """The file that a button saves."""
    with page.expect_download() as started:
        page.get_by_role("button", name=button).click()
    started.value.save_as(out)


def test_particles_that_are_shown_are_made_again_by_what_is_shown(tab, tmp_path, monkeypatch):
    """Also after the settings changed and particles were added, which begins a new stretch."""
    page = plane(tab)
    page.locator("#plane-level").fill("1")
    page.locator("canvas.plane").click(position={"x": 200, "y": 250})
    run, text = page.locator("#plane-run"), page.locator("#plane-chains")
    run.click()
    page.wait_for_selector("#plane-chains:not(:has-text(' 0 steps'))")
    page.get_by_label("Hold by the spring").check()
    before = int(text.inner_text().split(" ")[2])
    page.wait_for_function(
        "n => Number(document.querySelector('#plane-chains').textContent.split(' ')[2]) > n + 15", arg=before
    )
    run.click()
    monkeypatch.chdir(tmp_path)
    saved(page, "Where they began", tmp_path / "start.csv")
    saved(page, "Particles (CSV)", tmp_path / "particles.csv")
    page.get_by_text("Make these steps again").click()
    command, lines = page.locator("details.recipe[open] pre").all_inner_texts()
    assert "STEPS" not in command + lines
    assert command.startswith("springwell walk checkerboard start.csv --steps ")
    names = {}
    exec(lines, names)
    shown = np.loadtxt("particles.csv", delimiter=",", skiprows=1)
    assert shown.shape == (20, 2)
    np.testing.assert_allclose(names["x"], shown, atol=1e-4)


def test_particles_move_by_every_sampler(tab):
    page = plane(tab)
    canvas, text = page.locator("canvas.plane"), page.locator("#plane-chains")
    for kernel in ("mala", "langevin", "hmc", "nuts"):
        page.get_by_role("combobox", name="Sampler").select_option(kernel)
        canvas.click(position={"x": 200, "y": 250})
        assert text.inner_text().startswith("20 particles, 0 steps")
        page.locator("#plane-run").click()
        page.wait_for_selector("#plane-chains:not(:has-text(' 0 steps'))")
        changed(page, canvas, picture(canvas))
        page.locator("#plane-run").click()
        assert ("no acceptance test" in text.inner_text()) == (kernel == "langevin")
        page.get_by_role("button", name="Clear", exact=True).click()


def test_the_keyboard_alone_drops_particles_and_runs_them(tab):
    page = plane(tab)
    canvas = page.locator("canvas.plane")
    canvas.focus()
    for key in ("ArrowRight", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert page.locator("#plane-chains").inner_text().startswith("20 particles")
    page.keyboard.press(" ")
    page.get_by_role("button", name="Pause").wait_for()


def test_a_drawing_is_trained_on_stopped_and_explored(tab):
    page = plane(tab)
    page.get_by_role("button", name="Draw your own data").click()
    canvas = page.locator("canvas.plane")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    for i in range(60):
        across, up = math.cos(2 * math.pi * i / 60), math.sin(2 * math.pi * i / 60)
        page.mouse.move(box["x"] + box["width"] * (0.5 + 0.25 * across), box["y"] + box["height"] * (0.5 + 0.25 * up))
    page.mouse.up()
    page.locator("#plane-train").click()
    page.wait_for_selector("html[data-iteration]", state="attached")
    before = picture(canvas)
    changed(page, canvas, before)
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector("#plane-training:has-text('Stopped')")
    page.get_by_role("button", name="Explore it").click()
    page.wait_for_selector("#plane-model:has(option:checked[value^='runs/drawing'])")
    page.get_by_role("link", name="levels.gif").wait_for()


def test_samples_appear_level_by_level_and_the_way_can_be_walked(tab):
    page = tab("#images")
    sampled(page)
    canvas, slider = page.locator("#samples"), page.get_by_role("slider", name="Level")
    last = picture(canvas)
    slider.fill("0")
    changed(page, canvas, last)
    page.get_by_text("Make it again").filter(visible=True).click()
    page.get_by_text("springwell sample digits --num 4 --seed 0").wait_for()


def test_a_painted_mask_is_filled_in_and_what_is_seen_stays(tab):
    page = tab("#images")
    sampled(page)
    page.get_by_role("button", name="Inpaint").click()
    page.get_by_role("slider", name="Sweeps").fill("0")
    box = page.locator("#painter").bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.8 * box["height"], steps=8)
    page.mouse.up()
    page.locator("#fill-in").click()
    page.get_by_role("link", name="inpaint.npz").wait_for()
    with arrays_of(page, "inpaint.npz") as found:
        hidden = found["mask"] > 0
        assert 0 < hidden.sum() < hidden.size
        for sample in found["samples"]:
            np.testing.assert_array_equal(sample[~hidden], found["image"][~hidden])
        assert (found["samples"][:, hidden] != found["image"][hidden]).any()


def test_a_dropped_file_is_scored_and_a_broken_one_refused(tab, tmp_path):
    from PIL import Image

    Image.new("RGB", (40, 50), (200, 30, 30)).save(tmp_path / "red.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    page = tab("#images")
    page.locator("#images-model").select_option("digits")
    page.get_by_role("button", name="Score", exact=True).click()
    field = page.locator("#page-images .drop input").first
    field.set_input_files(tmp_path / "broken.png")
    page.get_by_text("no image that can be read").wait_for()
    field.set_input_files(tmp_path / "red.png")
    page.get_by_text("cropped and resized to 8 x 8").wait_for()
    page.locator("#score").click()
    page.get_by_role("link", name="score.csv").wait_for()
    assert "higher than 0 % of 256 test images" in page.locator("#score-facts").inner_text()


def test_a_lost_connection_comes_back_with_the_job(tab, server):
    cable = Cable(server.port)
    try:
        page = tab("#images", address=server.address.replace("127.0.0.1", "127.0.0.2"))
        page.locator("#images-model").select_option("digits")
        page.get_by_role("button", name="Interpolate").first.click()
        page.get_by_role("button", name="Interpolate").nth(1).click()
        page.locator("progress").filter(visible=True).wait_for()
        cable.cut()
        page.wait_for_selector("#connection.bad")
        cable.mend()
        page.wait_for_selector("#connection.good")
        page.get_by_role("link", name="interpolate.png").wait_for()
    finally:
        cable.close()


def test_a_page_that_is_loaded_again_shows_its_samples(tab):
    page = tab("#images")
    sampled(page)
    shown = picture(page.locator("#samples"))
    page.reload()
    page.get_by_role("link", name="sample.npz").wait_for()
    # The list of models comes last, and must leave what is shown alone.
    page.wait_for_selector("#images-model option:checked[value='digits']", state="attached")
    assert picture(page.locator("#samples")) == shown


def test_two_tabs_at_once_have_their_own_samples(tab):
    pages = [tab("#images"), tab("#images")]
    for seed, page in enumerate(pages):
        page.locator("#images-model").select_option("digits")
        page.get_by_role("slider", name="Samples").fill("2")
        page.get_by_role("spinbutton", name="Seed").fill(str(seed))
        page.locator("#draw-samples").click()
    found = []
    for page in pages:
        page.get_by_role("link", name="sample.npz").wait_for()
        with arrays_of(page, "sample.npz") as file:
            found.append(file["samples"])
    import springwell as sw
    from springwell.data.pictures import to_bytes

    model = sw.load("digits")
    for seed, samples in enumerate(found):
        np.testing.assert_array_equal(samples, to_bytes(model.sample(2, seed=seed)))


def test_runs_show_curves_previews_and_two_side_by_side(tab):
    page = tab("#runs")
    page.locator("#runs-first").select_option("runs/tiny")
    page.get_by_role("heading", name="runs/tiny").wait_for()
    assert page.locator(".chart canvas").count() >= 4
    page.get_by_text("Preview at iteration 30").wait_for()
    page.get_by_role("slider", name="Preview").fill("0")
    page.get_by_text("Preview at iteration 10").wait_for()
    page.locator("#runs-second").select_option("digits")
    page.get_by_role("heading", name="digits", exact=True).wait_for()
    assert page.locator("article.run").count() == 2
    comparison = page.get_by_role("article", name="Comparison")
    assert comparison.locator(".chart canvas").count() == 1
    assert comparison.locator(".key").all_inner_texts() == ["runs/tiny", "digits"]
    table = comparison.locator("table").nth(1).inner_text()
    assert "data\tcheckerboard\tdigits" in table
    assert "seed" not in table


@pytest.mark.parametrize("hash_", ["#plane", "#images", "#runs"])
def test_a_phone_scrolls_one_way_only_and_every_control_has_a_name(tab, hash_):
    scheme = "light" if hash_ == "#plane" else "dark"
    page = tab(hash_, viewport=PHONE, color_scheme=scheme)
    page.wait_for_selector("#connection.good")
    page.wait_for_selector("#plane-model option", state="attached")
    assert page.locator("html").get_attribute("data-theme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate(UNNAMED) == []
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") != scheme


def test_a_report_needs_nothing_but_its_file(python, tab, server, tmp_path):
    out = tmp_path / "report.html"
    assert python.run(["-m", "springwell", "report", "runs/tiny", "--out", str(out)], cwd=server.folder).returncode == 0
    page = tab(address=out.as_uri())
    page.get_by_role("heading", name="runs/tiny").wait_for()
    assert page.locator(".chart canvas").count() >= 4
    assert page.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 100


def test_two_runs_share_the_colours_of_their_heat_maps(tab):
    """A heat map beside that of another run spans what both have, so that equal colours are equal values."""
    page = tab("#runs")
    page.locator("#runs-first").select_option("digits")
    page.get_by_role("heading", name="digits", exact=True).wait_for()
    chart = page.get_by_role("img", name="Step size, level over iteration")
    alone = chart.get_attribute("aria-label")
    page.locator("#runs-second").select_option("digits-t1k")
    page.get_by_role("heading", name="digits-t1k", exact=True).wait_for()
    charts = page.get_by_role("img", name="Step size, level over iteration").all()
    spans = [chart.get_attribute("aria-label").partition("from ")[2] for chart in charts]
    assert spans[0] == spans[1] != alone.partition("from ")[2]


def test_a_chart_and_a_model_are_saved_as_files(tab, tmp_path):
    import zipfile

    from PIL import Image

    page = tab("#runs")
    page.locator("#runs-first").select_option("runs/tiny")
    saved(page, "Save as a picture: Loss, mean over the levels", tmp_path / "loss.png")
    with Image.open(tmp_path / "loss.png") as picture:
        assert picture.size[0] > 200
        assert picture.convert("RGBA").getextrema()[3] == (255, 255)
    with page.expect_download() as started:
        page.get_by_role("link", name="model (ZIP)").click()
    with zipfile.ZipFile(started.value.path()) as file:
        assert "tiny/model.safetensors" in file.namelist()


def test_films_of_particles_and_of_chains(tab, tmp_path):
    from PIL import Image

    page = plane(tab)
    page.locator("canvas.plane").click(position={"x": 200, "y": 250})
    page.locator("#plane-run").click()
    page.wait_for_function("() => Number(document.querySelector('#plane-chains').textContent.split(' ')[2]) > 6")
    page.locator("#plane-run").click()
    saved(page, "Film (GIF)", tmp_path / "particles.gif")
    with Image.open(tmp_path / "particles.gif") as gif:
        assert gif.size == (320, 320)
        assert gif.n_frames > 3
    page.get_by_role("link", name="Images").click()
    sampled(page)
    page.get_by_role("button", name="Long chains").click()
    page.locator("#walk").click()
    page.get_by_text(re.compile(r"chains, \d{2,} steps")).wait_for()
    page.locator("#walk").click()
    page.get_by_role("button", name="Run").filter(visible=True).wait_for()
    saved(page, "Film (GIF)", tmp_path / "chains.gif")
    with Image.open(tmp_path / "chains.gif") as gif:
        assert gif.n_frames >= 2


def test_a_class_is_chosen_once_for_every_tool(tab, server):
    from springwell.app.config import with_fields
    from springwell.app.presets import preset
    from tests.training.tiny import train

    config = preset("digits-density")
    config = with_fields(config, classes=("all",), iterations=1, batch=16, warmup=1, width=16, num_levels=4, preview_every=0)
    train(config, server.folder / "runs" / "digit-classes")
    page = tab("#images")
    page.locator("#images-model").select_option("runs/digit-classes")
    chosen = page.locator("#page-images").get_by_role("combobox", name="Class")
    chosen.select_option("7")
    page.locator("#page-images").get_by_role("slider", name="Guidance").fill("2")
    page.get_by_role("slider", name="Samples").fill("1")
    page.locator("#draw-samples").click()
    page.get_by_role("link", name="sample.npz").wait_for()
    for tool in ("Interpolate", "Inpaint", "Restore", "Score", "Long chains"):
        page.get_by_role("button", name=tool, exact=True).first.click()
        assert chosen.input_value() == "7"
    page.get_by_role("button", name="Score", exact=True).click()
    page.locator("#score").click()
    page.get_by_role("link", name="score.csv").wait_for()
    page.get_by_text("Make it again").filter(visible=True).click()
    command = page.locator("details.recipe[open] pre").first.inner_text()
    assert "--label 7 --guidance 2.0" in command
    page.reload()
    page.get_by_role("link", name="score.csv").wait_for()
    page.wait_for_function("() => document.querySelector('#page-images select:not(#images-model)').value === '7'")
