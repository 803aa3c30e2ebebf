"""What the page shows of each loader.

This file is about ``Panels``: the loaders of this process that are watched, each with its last
minute, and a ``Panel`` of each that says how it is doing, as HTML and as text.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Protocol

from asyncloader.loader.long_waits import Wait
from asyncloader.loader.page.history import MINUTE_SECONDS, History
from asyncloader.loader.stage_stats import percent_text, rate_text
from asyncloader.loader.stats import LoaderStats, drawn, headline_of, judge, waited_share
from asyncloader.loader.stats_picture import graph_of, processes_of, rollouts_of, verdict_of

logger = logging.getLogger("asyncloader")


class HasStats(Protocol):
    """A loader, as the page sees it."""

    def stats(self) -> LoaderStats: ...

    def why(self) -> Wait | None: ...


@dataclass(frozen=True)
class Panel:
    """How one loader is doing."""

    #: What no other panel of the page has, of letters, digits and dashes.
    key: str
    title: str
    #: A few words for the list of all loaders.
    summary: str
    html: str
    text: str
    #: What its consumer has waited for, once it has waited a minute; or "".
    waits: str = ""


class Panels:
    """The watched loaders of this process; looked at by one thread."""

    def __init__(self, process: str = "", source: str = "here") -> None:
        #: What the titles and the keys begin with, where several processes have panels.
        self._process, self._source = process, source
        self._lock = threading.Lock()
        self._shown: list[Shown] = []
        self._added = 0

    def add(self, loader: HasStats, name: str = "") -> Shown:
        """Show a loader until it is removed or collected; one that is shown stays the same."""
        with self._lock:
            found = next((each for each in self._shown if each.loader() is loader), None)
            if found is not None:
                found.name = name or found.name
                return found
            self._added += 1
            shown = Shown(loader, f"{self._source}-{self._added}", name or f"loader {self._added}")
            self._shown.append(shown)
            return shown

    def remove(self, shown: Shown) -> None:
        """Show a loader no more."""
        with self._lock:
            self._shown = [each for each in self._shown if each is not shown]

    def look(self) -> list[Panel]:
        """Look at every loader now, and return the panels."""
        with self._lock:
            self._shown = [each for each in self._shown if each.loader() is not None]
            present = list(self._shown)
        now = time.monotonic()
        return [panel for shown in present for panel in shown.look(now, self._process)]

    def why(self) -> str:
        """Return what each loader waits for now; it may take some seconds."""
        with self._lock:
            present = list(self._shown)
        return "\n\n".join(text for shown in present for text in shown.why(self._process))


class Shown:
    """A loader that is watched."""

    def __init__(self, loader: HasStats, key: str, name: str) -> None:
        # A loader that is dropped ends as ever.
        self.loader = weakref.ref(loader)
        self.key, self.name = key, name
        self._history = History()

    def look(self, now: float, process: str) -> Iterator[Panel]:
        """Yield the loader's panel, unless it is gone."""
        loader = self.loader()
        if loader is None:
            return
        title = self._title(process)
        try:
            self._history.add(now, loader.stats())
            yield panel_of(self.key, title, self._history)
        except Exception:
            logger.debug("%s could not be looked at", title, exc_info=True)

    def why(self, process: str) -> Iterator[str]:
        """Yield what the loader waits for now, unless it is gone."""
        loader = self.loader()
        if loader is None:
            return
        try:
            wait = loader.why()
        except Exception as error:  # noqa: BLE001 - the graph is in use; the next look may succeed
            yield f"{self._title(process)}: it could not be looked at: {error!r}"
        else:
            yield f"{self._title(process)}: {wait or 'its consumer does not wait'}"

    def _title(self, process: str) -> str:
        return f"{process} · {self.name}" if process else self.name


def panel_of(key: str, title: str, history: History) -> Panel:
    """Return how a loader is doing, as its last minute says."""
    recent = history.recent()
    verdict = judge(recent)
    state = "" if history.is_running() or not recent.epochs else " (no epoch runs now)"
    summary = rate_text(recent.rate) if recent.epochs else "not begun"
    if verdict.stage is not None:
        summary += f", bottleneck {verdict.stage.name}"
    rates = _spark_text(value for _, value in history.points(_rate))
    return Panel(
        key=key,
        title=title,
        summary=summary + state,
        html="\n".join(_html(key, title, recent, state, history)),
        text=f"{title}  {rates}\n{recent!r}\n\n{verdict.text}{state}",
        waits="\n".join(f"{title}: {wait}" for wait in recent.waits),
    )


def _html(key: str, title: str, recent: LoaderStats, state: str, history: History) -> Iterator[str]:
    verdict = judge(recent)
    yield f'<h2 id="{key}-title">{escape(title)}</h2>'
    # The verdict says the same of a loader that nobody has iterated.
    if recent.epochs:
        yield f'<p class="headline">{escape(headline_of(recent))}{state}</p>'
    yield verdict_of(verdict)
    for wait in recent.waits:
        yield f'<pre class="wait" role="status">{escape(str(wait))}</pre>'
    yield f'<div class="plots">{"".join(_plots(recent, history))}</div>'
    yield graph_of(drawn(recent), verdict)
    calls = {
        number: spark(history.points(_in_flight(number)), "", "small")
        for number in range(len(recent.rollouts))
    }
    yield rollouts_of(recent.rollouts, calls)
    beside = {
        worker.name: spark(history.points(_rate_of(worker.name)), "", "small")
        for worker in recent.workers
    }
    yield f"<div>{processes_of(recent.workers, beside)}</div>"


def _plots(recent: LoaderStats, history: History) -> Iterator[str]:
    yield _plot("items a second", rate_text(recent.rate), history.points(_rate))
    waited, busy = percent_text(waited_share(recent)), percent_text(_busy(recent))
    yield _plot("your loop waits", waited, history.points(waited_share), 1.0)
    if recent.workers:
        yield _plot("workers work", busy, history.points(_busy), 1.0)


def _plot(
    name: str, value: str, points: Iterable[tuple[float, float]], most: float | None = None
) -> str:
    label = f"{name} in the last minute, now {value}"
    return (
        f"<figure><figcaption>{escape(name)}</figcaption><output>{escape(value)}</output>"
        f"{spark(points, label, 'wide', most)}</figure>"
    )


#: The size of a plot, in units of its own.
_WIDTH, _HEIGHT = 120.0, 30.0

#: Where nobody looked for longer than this, the line is broken.
_GAP_SECONDS = 5.0


def spark(
    points: Iterable[tuple[float, float]], label: str, kind: str, most: float | None = None
) -> str:
    """Return a plot of what was seen so many seconds ago; without axes, from 0 up.

    Its top is ``most``, or the largest value. Without a label it is only decoration.
    """
    values = list(points)
    top = most or max((value for _, value in values), default=0.0) or 1.0
    lines: list[list[str]] = []
    before = -_GAP_SECONDS
    for ago, value in values:
        if not lines or before - ago > _GAP_SECONDS:
            lines.append([])
        x = _WIDTH * (1 - ago / MINUTE_SECONDS)
        lines[-1].append(f"{x:.1f},{_HEIGHT - 1 - (_HEIGHT - 2) * min(1.0, value / top):.1f}")
        before = ago
    said = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    drawn = "".join(f'<polyline points="{" ".join(line)}"/>' for line in lines)
    return (
        f'<svg class="spark {kind}" {said} viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}"'
        f' preserveAspectRatio="none">{drawn}</svg>'
    )


_BLOCKS = "▁▂▃▄▅▆▇█"


def _spark_text(values: Iterable[float]) -> str:
    """Return the last values as blocks of different heights."""
    last = list(values)[-30:]
    top = max(last, default=0.0) or 1.0
    return "".join(_BLOCKS[round((len(_BLOCKS) - 1) * value / top)] for value in last)


def _rate(stats: LoaderStats) -> float:
    return stats.rate


def _busy(stats: LoaderStats) -> float:
    """Return for which part of their time the workers have worked."""
    workers = [worker for worker in stats.workers if not worker.is_dispatcher]
    working = sum(worker.working for worker in workers)
    total = working + sum(worker.waiting for worker in workers)
    return working / total if total else 0.0


def _rate_of(name: str) -> Callable[[LoaderStats], float]:
    def rate(stats: LoaderStats) -> float:
        return next((worker.rate for worker in stats.workers if worker.name == name), 0.0)

    return rate


def _in_flight(number: int) -> Callable[[LoaderStats], float]:
    def calls(stats: LoaderStats) -> float:
        return stats.rollouts[number].in_flight if number < len(stats.rollouts) else 0.0

    return calls
