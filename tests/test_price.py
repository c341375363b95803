"""The budget of blocked seconds."""

from headwatch.price import Price


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def run(cost, per_step, every_n, steps, max_overhead=0.01):
    clock = Clock()
    price = Price(max_overhead, allowance=60.0, clock=clock)
    stretch = 1
    for step in range(1, steps + 1):
        clock.now += per_step
        if step % (every_n * stretch) == 0:
            clock.now += cost
            price.add(cost, step)
            stretch = max(stretch, price.stretch(every_n, step))
    return price, stretch


def test_a_cheap_monitor_keeps_its_interval():
    price, stretch = run(cost=0.05, per_step=0.1, every_n=100, steps=5000)
    assert stretch == 1
    assert price.overhead < 0.01


def test_a_dear_monitor_is_stretched_to_its_budget():
    # one snapshot costs 1 s and 100 steps take 10 s: a share of 1 % needs every 1,000 steps
    _, stretch = run(cost=1.0, per_step=0.1, every_n=100, steps=5000)
    assert stretch == 10


def test_the_start_is_not_judged():
    _, stretch = run(cost=5.0, per_step=0.1, every_n=100, steps=390)  # 39 s of steps, 15 s of snapshots
    assert stretch == 1
