"""The background thread: order, back-pressure, a bounded end."""

import threading

from headwatch.worker import Worker


def test_jobs_run_in_order_off_the_calling_thread():
    seen = []
    worker = Worker()
    for i in range(20):
        worker.submit(lambda i=i: seen.append((i, threading.current_thread().name)))
    assert worker.close(10)
    assert seen == [(i, "headwatch") for i in range(20)]


def test_a_full_queue_holds_the_caller_back():
    gate, worker = threading.Event(), Worker(capacity=1)
    worker.submit(gate.wait)
    done = threading.Event()

    def submit_three():
        for _ in range(3):
            worker.submit(lambda: None)
        done.set()

    threading.Thread(target=submit_three).start()
    assert not done.wait(0.2)
    gate.set()
    assert done.wait(5)
    assert worker.close(5)


def test_the_end_is_bounded():
    gate, worker = threading.Event(), Worker()
    worker.submit(gate.wait)
    assert not worker.close(0.1)
    gate.set()


def test_idle_is_called():
    called = threading.Event()
    worker = Worker(idle=called.set, idle_seconds=0.01)
    assert called.wait(5)
    assert worker.close(5)
