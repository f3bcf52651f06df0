"""How often a server runs how many requests: the weights of the score, from a file or watched on a live server."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from harness.endpoint import Endpoint, check_url
from harness.errors import UserError
from harness.plausible import MAX_FIGURE

RUNNING = "sglang:num_running_reqs"
EVERY_S = 1.0


def weights_from(source: str, watch_s: float, api_key: str | None = None) -> dict[int, float]:
    """Weight by number of concurrent requests.

    Args:
        source: a CSV file with the columns concurrency and weight, or the URL of a production server.
        watch_s: how long to watch such a server.
        api_key: its bearer token.

    Raises:
        UserError: the source cannot be used.
    """
    if source.startswith(("http://", "https://")):
        return watch(Endpoint(check_url(source), api_key), watch_s)
    return read_weights(Path(source))


def watch(endpoint: Endpoint, watch_s: float, sleep: Callable[[float], None] = time.sleep) -> dict[int, float]:
    """Seconds spent at each number of running requests, from the server's /metrics; an idle server counts nothing.

    Args:
        endpoint: the server; it is only read.
        watch_s: how long to watch.
        sleep: between two readings.

    Raises:
        UserError: it has no such metric, or ran nothing while it was watched.
    """
    seen: Counter[int] = Counter()
    for reading in range(max(1, round(watch_s / EVERY_S))):
        if reading:
            sleep(EVERY_S)
        samples = endpoint.metrics() or {}
        if RUNNING not in samples:
            raise UserError(f"{endpoint.public_url}/metrics has no {RUNNING}; start SGLang with --enable-metrics")
        seen[round(samples[RUNNING])] += 1
    weights = {count: readings * EVERY_S for count, readings in sorted(seen.items()) if count > 0}
    if not weights:
        raise UserError(f"{endpoint.public_url} ran no request in {watch_s:.0f} s; watch it while it has traffic")
    return weights


def read_weights(path: Path) -> dict[int, float]:
    """A traffic histogram: CSV with columns concurrency and weight.

    Raises:
        UserError: the file cannot be read, or holds no positive weight.
    """
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        weights = {int(row["concurrency"]): float(row["weight"]) for row in rows}
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror}; give a readable CSV file") from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: give a CSV file with the columns concurrency (whole) and weight ({error})") from error
    if any(not 0 <= w <= MAX_FIGURE for w in weights.values()) or not sum(weights.values()) or min(weights) < 0:
        raise UserError(f"{path}: give weights that are 0 or more, and at least one above 0")
    return weights
