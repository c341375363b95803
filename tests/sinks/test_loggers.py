"""Other loggers get the scalars, on the thread that they belong to."""

from __future__ import annotations

import csv
import threading

import pytest

from headwatch.sinks.loggers import LoggerSink
from headwatch.sinks.scalars import scalars
from standin.rows import make_rows


class _Logger:
    def __init__(self):
        self.calls = []

    def log_metrics(self, metrics, step=None):
        self.calls.append((metrics, step, threading.get_ident()))


def expected(row):
    values = scalars(row)
    del values["trainer/global_step"]
    return values


def test_scalars_go_to_log_metrics_at_lightnings_x():
    logger = _Logger()
    sink = LoggerSink(logger)
    rows = list(make_rows())
    for row in rows:
        sink.log(row)
    assert [(metrics, step) for metrics, step, _ in logger.calls] == [(expected(row), row.x) for row in rows]
    assert sink.name == "_Logger"


def test_rows_of_another_thread_wait_for_their_own():
    logger = _Logger()
    sink = LoggerSink(logger)
    rows = list(make_rows())
    worker = threading.Thread(target=lambda: [sink.log(row) for row in rows])
    worker.start()
    worker.join()
    assert logger.calls == []
    sink.flush()
    assert [step for _, step, _ in logger.calls] == [row.x for row in rows]
    assert {thread for *_, thread in logger.calls} == {threading.get_ident()}


def test_closing_logs_what_waits():
    logger = _Logger()
    sink = LoggerSink(logger)
    worker = threading.Thread(target=lambda: (sink.log(next(iter(make_rows()))), sink.close(None)))
    worker.start()
    worker.join()
    assert len(logger.calls) == 1


def test_a_csv_logger_holds_the_same_numbers(tmp_path):
    loggers = pytest.importorskip("pytorch_lightning.loggers")
    logger = loggers.CSVLogger(tmp_path)
    sink = LoggerSink(logger)
    rows = list(make_rows())
    for row in rows:
        sink.log(row)
    logger.save()
    (file,) = tmp_path.rglob("metrics.csv")
    with open(file, newline="") as lines:
        written = list(csv.DictReader(lines))
    for row, record in zip(rows, written, strict=True):
        assert {key: float(value) for key, value in record.items() if value} == {**expected(row), "step": row.x}
