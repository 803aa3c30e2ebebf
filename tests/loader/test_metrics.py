"""Every number of the stats can be scraped over HTTP, as Prometheus does."""

from __future__ import annotations

import re
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.loader.metrics import Metric

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)+)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Return the values by name and first label, as a reader of the format finds them."""
    found = {}
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match, f"not in Prometheus's format: {line!r}"
        name, labels, value = match.groups()
        first = LABEL.findall(labels or "")[:1]
        found[name, first[0][1] if first else ""] = float(value)
    return found


def test_a_scrape_says_what_the_stats_say():
    graph = IterableWrapper(range(10)).sharding_filter().map(str).batch(2)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        list(loader)

        class Metrics(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                lines = (f"{metric}\n" for metric in loader.stats().as_metrics())
                self.wfile.writelines(map(str.encode, lines))

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                address = f"http://127.0.0.1:{server.server_port}/metrics"
                with urllib.request.urlopen(address, timeout=30) as answer:
                    found = parsed(answer.read().decode())
            finally:
                server.shutdown()
                thread.join()
        stats = loader.stats()
    assert found["asyncloader_items_total", ""] == stats.items == 5
    assert found["asyncloader_stage_items_total", "map(str)"] == 10
    assert found["asyncloader_worker_items_total", "worker 0"] == 5
    assert found["asyncloader_epoch_seconds", ""] == stats.seconds
    names = {name for name, _ in found}
    assert {"asyncloader_consumer_waited_seconds_total", "asyncloader_restarts_total"} <= names


def test_a_label_may_hold_anything():
    metric = Metric("asyncloader_stage_errors_total", {"stage": 'map("a\\b\n")'}, 1)
    assert str(metric) == 'asyncloader_stage_errors_total{stage="map(\\"a\\\\b\\n\\")"} 1'
    assert parsed(str(metric))


def test_the_numbers_of_one_name_come_together():
    with DataLoader2(IterableWrapper(range(3)).map(str).map(len)) as loader:
        list(loader)
        names = [metric.name for metric in loader.stats().as_metrics()]
    assert names.count("asyncloader_stage_seconds_total") == 3
    assert [name for name, _ in groupby(names)] == list(dict.fromkeys(names))
