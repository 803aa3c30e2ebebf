"""The page in a real browser: what a person sees and clicks, at two widths, light and dark."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.loader.page import server
from tests.browser import SECONDS, WITHOUT_CHROMIUM, Tab, browsing, save
from tests.loader.page.viewing import training

pytestmark = WITHOUT_CHROMIUM

RATE = "document.querySelector('section output').textContent"
SECTIONS = "[...document.querySelectorAll('section h2')].map((title) => title.textContent)"
STATE = "document.getElementById('state').textContent"


def decode(number: int) -> int:
    return sum(range(2_000 + number % 2))


def with_two_workers() -> AbstractAsyncContextManager[DataLoader2[Any]]:
    graph = IterableWrapper(range(10**9), deepcopy=False).shuffle().sharding_filter().map(decode)
    graph = graph.batch(4).pin_memory(pin_memory_fn=as_it_is)
    return training(graph, MultiProcessingReadingService(2))


def as_it_is(item: Any, device: Any) -> Any:
    return item


@pytest.mark.soak
@pytest.mark.parametrize("width", [1200, 380])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
async def test_a_person_sees_how_a_loader_is_doing(width, is_dark):
    validation = DataLoader2(IterableWrapper(range(8)).map(str))
    async with with_two_workers() as loader, browsing() as tab, asyncio.timeout(SECONDS):
        with loader.watch("training") as watch, validation.watch("validation"):
            await tab.open(watch.url, width, 900, is_dark=is_dark)
            await tab.until(f"{SECTIONS}.length == 2")
            await has_the_parts_of_a_picture(tab)
            await fits(tab, width)
            await reads_on_its_ground(tab, is_dark)
            await follows_without_reloading(tab)
            save(await tab.picture(), f"page-{width}-{'dark' if is_dark else 'light'}.png")
            await can_be_clicked(tab)
            await can_be_reached_by_keys(tab)
        # The page is closed now.
        await tab.until(f"{STATE}.startsWith('no connection')")
        assert await tab.value(f"{SECTIONS}.length") == 2
        refusals = [said for said in tab.said if "ERR_" not in said]
        assert refusals == []


async def has_the_parts_of_a_picture(tab: Tab) -> None:
    assert await tab.value(SECTIONS) == ["training", "validation"]
    assert await tab.value("document.querySelectorAll('section .verdict').length") == 2
    await tab.until("document.querySelector('section .graph .blames, section .verdict.plain')")
    names = "[...document.querySelectorAll('section .graph .name')].map((each) => each.textContent)"
    assert "map(decode)" in await tab.value(names)
    assert "your loop" in await tab.value(names)
    places = "[...document.querySelectorAll('section .legend')].map((each) => each.textContent)"
    assert (await tab.value(places))[:2] == ["workers", "loader"]
    workers = "[...document.querySelectorAll('tbody th')].map((each) => each.textContent)"
    await tab.until(f"{workers}.length == 2")
    assert await tab.value(workers) == ["worker 0", "worker 1"]
    await tab.until("document.querySelector('section .graph .beside').textContent.includes('/s')")
    unlabelled = "[...document.querySelectorAll('svg:not([aria-label]):not([aria-hidden])')].length"
    assert await tab.value(unlabelled) == 0


async def fits(tab: Tab, width: int) -> None:
    assert await tab.value("document.documentElement.scrollWidth") <= width
    # A name stands within its box, whatever fonts there are.
    outside = """[...document.querySelectorAll('.graph .box:has(.area)')].filter((box) => {
        const area = box.querySelector('.area').getBoundingClientRect();
        const name = box.querySelector('.name')?.getBoundingClientRect();
        return name && (name.left < area.left || name.right > area.right);
    }).map((box) => box.textContent)"""
    assert await tab.value(outside) == []


async def reads_on_its_ground(tab: Tab, is_dark: bool) -> None:
    style = "getComputedStyle(document.body)"
    ground = await tab.value(f"{style}.backgroundColor.match(/\\d+/g).map(Number)")
    ink = await tab.value(f"{style}.color.match(/\\d+/g).map(Number)")
    assert (sum(ground) < sum(ink)) is is_dark
    assert contrast(ground, ink) > 7


def contrast(one: list[float], other: list[float]) -> float:
    """Return the contrast of two colours, as the accessibility guidelines define it."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: list[float]) -> float:
    parts = [each / 255 for each in colour[:3]]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


async def follows_without_reloading(tab: Tab) -> None:
    await tab.value("window.mark = document.querySelector('section')")
    points = "document.querySelector('section polyline')?.getAttribute('points')"
    first = await tab.value(points)
    await tab.until(f"{points} != {first!r} && {points}.split(' ').length > 2")
    assert await tab.value("window.mark === document.querySelector('section')")


async def can_be_clicked(tab: Tab) -> None:
    await tab.click("#hold")
    assert await tab.value("document.getElementById('hold').ariaPressed") == "true"
    assert (await tab.value(STATE)).startswith("held")
    # Held: what comes now is not shown.
    held = await tab.value("document.querySelector('main').textContent")
    await tab.value(
        "new Promise((resolve) => { let left = 3; events.addEventListener('message',"
        " () => { left -= 1; if (!left) resolve(); }); })"
    )
    assert await tab.value("document.querySelector('main').textContent") == held
    await tab.click("#hold")
    await tab.until(f"{STATE} == 'live'")
    await tab.until(f"document.querySelector('main').textContent != {held!r}")
    await tab.click("nav a:nth-child(2)")
    await tab.until("document.activeElement.querySelector('h2')?.textContent == 'validation'")


async def can_be_reached_by_keys(tab: Tab) -> None:
    await tab.value("document.activeElement.blur(); window.getSelection().removeAllRanges()")
    await tab.value("document.getElementById('hold').focus()")
    reached = []
    for _ in range(4):
        await tab.press("Tab")
        reached.append(await tab.value("document.activeElement.textContent.trim().slice(0, 8)"))
        assert await tab.value(
            "parseFloat(getComputedStyle(document.activeElement).outlineWidth) >= 2"
        )
    assert reached[:2] == ["training", "validati"]


async def test_a_wrong_token_shows_a_refusal_and_runs_nothing():
    loader = DataLoader2(IterableWrapper(range(8)))
    async with browsing() as tab, asyncio.timeout(SECONDS):
        with loader.watch() as watch:
            await tab.open(f"{watch.url.rsplit('/', 2)[0]}/wrong/", 1200, 900)
            await tab.until("document.body?.textContent.includes('not the page\\'s address')")
            assert await tab.value("document.scripts.length") == 0


async def test_the_policy_of_the_page_lets_no_strange_script_run(monkeypatch):
    monkeypatch.setattr(server, "TICK_SECONDS", 0.1)
    loader = DataLoader2(IterableWrapper(range(8)))
    async with browsing() as tab, asyncio.timeout(SECONDS):
        with loader.watch() as watch:
            await tab.open(watch.url, 1200, 900)
            await tab.until("document.querySelector('section')")
            await tab.value(
                "document.body.insertAdjacentHTML('beforeend',"
                " '<img id=bad src=x onerror=\"window.ran = true\"><p id=after>')"
            )
            await tab.value(
                "new Promise((resolve) => { const image = document.getElementById('bad');"
                " if (image.complete) resolve(); else image.addEventListener('error', resolve); })"
            )
            assert await tab.value("window.ran === undefined")


async def test_the_picture_lives_on_over_epochs_and_shows_new_loaders(monkeypatch):
    monkeypatch.setattr(server, "TICK_SECONDS", 0.1)
    first = DataLoader2(IterableWrapper(range(100)).map(str))
    async with first, browsing() as tab, asyncio.timeout(SECONDS):
        with first.watch("first") as watch:
            await tab.open(watch.url, 1200, 900)
            headline = "document.querySelector('.headline')?.textContent ?? ''"
            for epoch in itertools.islice(itertools.count(1), 3):
                assert len([item async for item in first]) == 100
                await tab.until(f"({headline}).startsWith('epoch {epoch}: 100 items')")
            second = DataLoader2(IterableWrapper(range(8)))
            with second.watch("second"):
                await tab.until(f"{SECTIONS}.join() == 'first,second'")
            await tab.until(f"{SECTIONS}.join() == 'first'")
