"""The page in a real browser: what a person sees, with mouse, keyboard and phone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import HOSTILE, Window
from tests.support.console_site import STREAM, ConsoleSite
from tests.support.processes import Processes

pytestmark = [pytest.mark.requires("browser"), pytest.mark.timeout(180)]

PATIENCE = 30_000


def card(page: Page, stream: int = STREAM) -> Any:
    return page.locator(f'.card[data-key="{stream}"]')


READ = """() => {
    const said = document.querySelector(".pixel")?.textContent.match(/= (\\d+)$/);
    return said && Number(said[1]) === Number(document.querySelector(".picture").dataset.seq) % 256;
}"""
PIXEL = """([selector, after]) => {
    const canvas = document.querySelector(selector);
    if (!(Number(canvas?.dataset.seq) > after)) return null;
    const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, -Math.floor(canvas.width / 2), -Math.floor(canvas.height / 2));
    return [Number(canvas.dataset.seq), [...copy.getImageData(0, 0, 1, 1).data]];
}"""


def shown(page: Page, selector: str, after: int = -1) -> tuple[int, list[int]]:
    """The number of the frame on a canvas, later than that one, and the pixel in its middle."""
    found = page.wait_for_function(PIXEL, arg=[selector, after], timeout=PATIENCE).json_value()
    return found[0], found[1]


def assert_counts(page: Page, selector: str, pictures: int = 4) -> None:
    """Every pixel of a frame is its number, so a canvas shows which frame it shows."""
    seq = -1
    greys = set()
    for _ in range(pictures):
        seq, (red, green, blue, alpha) = shown(page, selector, after=seq)
        assert abs(red - seq % 256) <= 1, (seq, red)
        assert red == green == blue
        assert alpha == 255
        greys.add(red)
    assert len(greys) > 1


def test_streams_appear_with_thumbnails_that_show_what_is_published(site: ConsoleSite, window: Window) -> None:
    page = window.open(site.url)
    expect(page.locator(".card")).to_have_count(2, timeout=PATIENCE)
    expect(card(page)).to_have_attribute("data-state", "live")
    expect(card(page).locator("h3")).to_have_text("counter")
    expect(card(page).locator(".figures dd").first).to_have_text(re.compile(r"^(9|1[01])\d(\.\d)?$"), timeout=PATIENCE)
    assert_counts(page, f'.card[data-key="{STREAM}"] .thumbnail')
    assert_counts(page, f'.card[data-key="{STREAM + 1}"] .thumbnail')


def test_a_stream_has_a_large_picture_and_charts_that_advance(site: ConsoleSite, window: Window) -> None:
    page = window.open(site.url)
    card(page).click()
    expect(page.locator("h2", has_text="counter")).to_be_visible()
    assert_counts(page, ".picture")
    until = "() => [...document.querySelectorAll('.chart')].map((each) => Number(each.dataset.until))"
    before = page.wait_for_function(
        f"() => {{ const all = ({until})(); return all.length === 6 && all.every((each) => each > 0) ? all : null }}"
    ).json_value()
    page.wait_for_function(
        f"([before]) => ({until})().every((each, index) => each > before[index] + 1)", arg=[before], timeout=PATIENCE
    )
    latency = page.locator(".chart", has_text="Latency").locator(".reading").first
    expect(latency).to_have_text(re.compile(r"\d (ns|µs|ms)$"), timeout=PATIENCE)
    expect(page.locator("tbody tr", has_text="every frame")).to_have_count(1)
    expect(page.locator("tbody tr", has_text="this console")).to_have_count(1)


def test_zoom_pixel_reading_pause_and_colours(site: ConsoleSite, window: Window) -> None:
    page = window.open(f"{site.url}#/stream/{STREAM}")
    shown(page, ".picture")
    page.get_by_label("Zoom in").click()
    page.get_by_label("Zoom in").click()
    picture = page.locator(".picture")
    box = picture.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.get_by_role("button", name="Pause").click()
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
    page.wait_for_function(READ, timeout=PATIENCE)
    seq, _ = shown(page, ".picture")
    reading = page.locator(".pixel").text_content() or ""
    match = re.fullmatch(r"x (\d+)  y (\d+)  = (\d+)", reading)
    assert match, reading
    assert int(match[3]) == seq % 256
    assert 12 <= int(match[1]) <= 20
    page.wait_for_timeout(500)
    assert shown(page, ".picture")[0] == seq, "a paused picture stands still"
    page.get_by_label("Colours").select_option("viridis")
    _, (red, green, blue, _) = shown(page, ".picture")
    assert not red == green == blue
    page.get_by_role("button", name="Go on").click()
    shown(page, ".picture", after=seq)
    page.get_by_label("Contrast").select_option("minmax")
    page.get_by_label("Lowest value").fill("10")
    page.get_by_label("Lowest value").press("Enter")
    expect(page.get_by_label("Contrast")).to_have_value("manual")


def test_a_command_shows_its_echo(site: ConsoleSite, window: Window) -> None:
    page = window.open(f"{site.url}#token={site.config.console.token}")
    expect(page.locator("#status-text")).to_have_text("live", timeout=PATIENCE)
    assert "token" not in page.url, "the token is in the address no more"
    page.get_by_role("link", name="Services").click()
    service = page.locator(".service", has_text="service:driver:default")
    service.get_by_role("button", name="Commands").click()
    service.locator(".command button", has_text=re.compile("^state$")).click()
    echo = service.locator(".echo", has_text="state")
    expect(echo.first).to_contain_text("echoed after", timeout=PATIENCE)
    expect(echo.first).to_contain_text('"state":"running"')
    page.get_by_role("link", name="Events").click()
    expect(page.locator("tr", has_text="service:driver:default").first).to_be_visible(timeout=PATIENCE)


def test_without_the_token_one_can_only_look(site: ConsoleSite, window: Window) -> None:
    page = window.open(f"{site.url}#/services")
    expect(page.locator("#status-text")).to_have_text("live · looking only", timeout=PATIENCE)
    button = page.locator(".service").get_by_role("button", name="Commands").first
    expect(button).to_be_disabled(timeout=PATIENCE)


def test_a_killed_producer_turns_dead_and_a_new_one_live(processes: Processes, base_dir: Path, window: Window) -> None:
    site = ConsoleSite(processes, base_dir)
    site.start_driver()
    site.publish(STREAM, "--name", "survivor", "--dtype", "uint8")
    producer = site.publish(STREAM + 1, "--name", "mortal", "--dtype", "uint8")
    site.start_console()
    page = window.open(site.url)
    expect(card(page, STREAM + 1)).to_have_attribute("data-state", "live", timeout=PATIENCE)
    producer.kill()
    expect(card(page, STREAM + 1)).to_have_attribute("data-state", "dead", timeout=PATIENCE)
    expect(card(page, STREAM + 1).locator(".note")).to_contain_text("the producer died")
    expect(card(page)).to_have_attribute("data-state", "live")
    expect(page.locator("#streams-figure")).to_have_text("1 / 2", timeout=PATIENCE)
    site.publish(STREAM + 1, "--name", "successor", "--dtype", "uint8")
    expect(card(page, STREAM + 1)).to_have_attribute("data-state", "live", timeout=PATIENCE)
    expect(card(page, STREAM + 1).locator("h3")).to_have_text("successor", timeout=PATIENCE)
    page.get_by_role("link", name="Events").click()
    page.get_by_label("Search events").fill("dead")
    expect(page.locator("tr[data-level=alert]").first).to_contain_text("dead", timeout=PATIENCE)
    expect(page.locator("tbody tr", has_text="new")).to_have_count(0)


def test_the_page_recovers_when_the_server_restarts(
    processes: Processes, base_dir: Path, window: Window, unused_port: int
) -> None:
    site = ConsoleSite(processes, base_dir, port=unused_port)
    site.start_driver()
    site.publish(STREAM, "--dtype", "uint8")
    console = site.start_console()
    window.expected = "net::ERR_"
    page = window.open(site.url)
    seq, _ = shown(page, ".thumbnail")
    console.kill()
    expect(page.locator("#status")).to_have_attribute("data-state", "lost", timeout=PATIENCE)
    site.start_console()
    expect(page.locator("#status")).to_have_attribute("data-state", "live", timeout=PATIENCE)
    shown(page, ".thumbnail", after=seq)
    expect(card(page)).to_have_attribute("data-state", "live")


def test_recordings_are_listed_and_the_report_that_was_made_of_one_is_a_click_away(
    site: ConsoleSite, window: Window
) -> None:
    page = window.open(f"{site.url}#/recordings")
    row = page.locator("#recordings tbody tr")
    expect(row).to_have_count(1, timeout=PATIENCE)
    expect(row.locator("th")).to_have_text("night")
    expect(row.locator("td").nth(0)).to_have_text("recording")
    expect(row.locator("td").nth(1)).to_have_text(re.compile(rf"^{STREAM + 1}: \d+"), timeout=PATIENCE)
    expect(row.locator("td").nth(4)).to_have_text(re.compile(r"^\d"))
    durable = row.locator("td").nth(6)
    before = durable.text_content()
    expect(durable).not_to_have_text(before or "", timeout=PATIENCE)
    expect(row.locator("code")).to_have_text(re.compile(r"^framepool spark report /.*/night$"))
    tables = site.path.parent / "recordings" / "night.tables"
    tables.mkdir()
    (tables / "report.html").write_text("<!doctype html><style>h1{color:rgb(1,2,3)}</style><h1>Made by Spark</h1>")
    with page.expect_popup() as opened:
        row.get_by_role("link", name="open").click(timeout=PATIENCE)
    heading = opened.value.locator("h1")
    expect(heading).to_have_text("Made by Spark")
    expect(heading).to_have_css("color", "rgb(1, 2, 3)")


def test_everything_can_be_done_by_keyboard(site: ConsoleSite, window: Window) -> None:
    page = window.open(site.url)
    expect(page.locator(".card")).to_have_count(2, timeout=PATIENCE)
    for key, name in (("2", "topology"), ("3", "services"), ("4", "recordings"), ("5", "events"), ("1", "streams")):
        page.keyboard.press(key)
        expect(page.locator(f"#tab-{name}")).to_have_attribute("aria-current", "page")
    page.keyboard.press("/")
    expect(page.get_by_label("Search streams")).to_be_focused()
    page.keyboard.type("other")
    expect(page.locator(".card")).to_have_count(1)
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    expect(page.locator(".card")).to_have_count(2)
    page.keyboard.press("Escape")
    card(page).focus()
    page.keyboard.press("ArrowRight")
    expect(card(page, STREAM + 1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h2", has_text="other")).to_be_visible()
    shown(page, ".picture")
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.locator(".picture").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".pixel")).to_contain_text(re.compile(r"x \d+  y \d+  [=≈] \d+"))
    page.keyboard.press("c")
    expect(page.get_by_label("Colours")).to_have_value("viridis")
    page.keyboard.press("Escape")  # out of the field
    page.keyboard.press("Escape")  # back to all streams
    expect(page.locator(".card")).to_have_count(2)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).not_to_be_visible()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_theme_is_the_systems_until_one_is_chosen(site: ConsoleSite, window: Window, scheme: Any) -> None:
    page = window.open(site.url, color_scheme=scheme)
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    other = "light" if scheme == "dark" else "dark"
    page.emulate_media(color_scheme=other)
    expect(page.locator("html")).to_have_attribute("data-theme", other)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("t")  # system to light
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_nothing_is_wider_than_a_phone(site: ConsoleSite, window: Window) -> None:
    page = window.open(f"{site.url}#token={site.config.console.token}", width=360, height=780, has_touch=True)
    expect(card(page)).to_be_visible(timeout=PATIENCE)
    for view in ("streams", f"stream/{STREAM}", "topology", "services", "recordings", "events"):
        page.evaluate(f"location.hash = '#/{view}'")
        page.wait_for_timeout(1200)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360, view
        expect(page.get_by_role("link", name="Events")).to_be_in_viewport(ratio=1)


def test_names_from_outside_are_text_and_never_markup(site: ConsoleSite, window: Window) -> None:
    page = window.open(site.url)
    expect(card(page, STREAM + 1).locator("h3")).to_have_text(HOSTILE, timeout=PATIENCE)
    for view in ("topology", f"stream/{STREAM + 1}", "events"):
        page.evaluate(f"location.hash = '#/{view}'")
        page.wait_for_timeout(800)
        expect(page.locator("main")).to_contain_text("onerror" if view != "events" else "stream")
        assert page.locator("main img").count() == 0


def test_topology_shows_who_reads_what(site: ConsoleSite, window: Window) -> None:
    page = window.open(f"{site.url}#/topology")
    expect(page.locator(".map .node", has_text="producer")).to_have_count(2, timeout=PATIENCE)
    expect(page.locator(".map .node", has_text="counter")).to_have_count(1)
    expect(page.locator(".map .node", has_text="every frame")).to_have_count(2, timeout=PATIENCE)  # reader, recorder
    assert page.locator(".map .link").count() >= 4
    page.locator(".map a", has_text="counter").click()
    expect(page.locator("h2", has_text="counter")).to_be_visible()
