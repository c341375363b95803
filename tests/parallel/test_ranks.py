"""Trainings of two and four processes: numbers equal one process's, training stays bit-identical, nothing hangs."""

from pathlib import Path

import numpy as np
import pytest
import scenarios
import torch
from launching import codes, launch, results

import headwatch
from headwatch.heads import find_heads
from headwatch.probe.documents import probe_batches
from headwatch.probe.measure import SignatureMeasure

NUMBERS = {
    2: ["ddp", "fsdp2", "tensor_parallel", "tensor_parallel_counted", "fsdp1"],
    4: ["ddp", "fsdp2", "tensor_and_data_parallel"],
}
FAULTS = ["failing_rank", "failing_reads", "crashing_rank", "slow_rank", "parts_of_a_model", "resumed"]
CASES = [(world, name) for world, names in NUMBERS.items() for name in names]
WITH_SIGNATURES = [(world, name) for world, name in CASES if name != "tensor_parallel_counted"]
STEPS = [0, 1, 2, 4, 6]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    roots = {}

    def run(world: int) -> Path:
        if world not in roots:
            roots[world] = tmp_path_factory.mktemp(f"world{world}")
            launch([*NUMBERS[world], *(FAULTS if world == 2 else [])], world, roots[world])
        return roots[world]

    return run


def trained_net(path):
    net = scenarios.Net()
    net.load_state_dict(torch.load(path / "weights.pt", weights_only=True))
    return net


@pytest.mark.parametrize(("world", "name"), CASES)
def test_profiles_equal_those_of_one_process(trained, world, name):
    results(trained(world), name)
    run = headwatch.load(trained(world) / name)
    rows = run.to_pandas()
    assert run.steps() == STEPS
    assert run.info["status"] == "finished"
    alone = headwatch.profile(trained_net(trained(world) / name)).to_pandas()
    last = rows[rows.step == STEPS[-1]]
    assert len(last) == scenarios.LAYERS * scenarios.HEADS
    for key in ("a", "b", "c", "d", "stable_rank", "theta_distance", "pairing", "norm"):
        np.testing.assert_allclose(last[key].to_numpy(), alone[key].to_numpy(), rtol=1e-10, atol=1e-10, err_msg=key)
    assert rows.groupby("step").size().eq(len(last)).all()
    assert last.drift.gt(0).all()


@pytest.mark.parametrize(("world", "name"), WITH_SIGNATURES)
def test_signatures_equal_those_of_one_process(trained, world, name):
    results(trained(world), name)
    net = trained_net(trained(world) / name)
    alone = SignatureMeasure(net, find_heads(net), probe_batches(scenarios.probe())).take(0)(0).heads.to_pandas()
    rows = headwatch.load(trained(world) / name).to_pandas("signature")
    last = rows[rows.step == STEPS[-1]]
    for key in ("n_eff", "n_eff_std", "c95", "peak_mean", "mutual_information", "sink_share", "row_entropy"):
        # tensor parallelism sums in another order, in float32
        np.testing.assert_allclose(last[key].to_numpy(), alone[key].to_numpy(), atol=1e-6, err_msg=key)


@pytest.mark.parametrize(("world", "name"), WITH_SIGNATURES)
def test_training_is_bit_identical_with_and_without(trained, world, name):
    for rank in results(trained(world), name):
        assert rank["plain"] == rank["watched"]
        assert len(rank["plain"][0]) == scenarios.STEPS
        assert rank["threads"] == []


@pytest.mark.parametrize(("world", "name"), [(2, "ddp"), (4, "ddp"), (2, "fsdp2"), (4, "fsdp2")])
def test_heads_are_proven_on_the_first_batch(trained, world, name):
    rows = headwatch.load(trained(world) / name).to_pandas()
    assert set(rows.status) == {"proven"}


class TestFaults:
    def test_a_rank_that_fails_to_measure_leaves_holes_and_no_one_hangs(self, trained):
        ranks = results(trained(2), "failing_rank")
        plain = results(trained(2), "ddp")
        assert [rank["losses"] for rank in ranks] == [rank["plain"][0] for rank in plain]
        run = headwatch.load(trained(2) / "failing_rank")
        rows = run.to_pandas()
        assert run.steps() == STEPS
        assert set(rows[rows.a.isna()].layer) == {1}  # rank 1's turn
        assert rows[rows.layer != 1].a.notna().all()
        assert any("rank 1 could not measure its heads at step 0: MemoryError" in text for text in run.info["messages"])

    def test_a_rank_that_cannot_copy_what_was_gathered(self, trained):
        results(trained(2), "failing_reads")
        run = headwatch.load(trained(2) / "failing_reads")
        rows = run.to_pandas()
        assert run.steps() == STEPS
        assert rows.a.isna().any()
        assert rows.a.notna().any()
        assert any("could not be measured on rank 1" in text for text in run.info["messages"])

    def test_a_rank_that_dies_ends_the_run_as_failed(self, trained):
        assert codes(trained(2), "crashing_rank") == [1, 1]
        run = headwatch.load(trained(2) / "crashing_rank")
        assert run.info["status"] == "failed"
        assert run.steps()[:3] == [0, 1, 2]

    def test_the_interval_is_stretched_on_all_ranks_by_what_rank_0_pays(self, trained):
        first, second = (rank["stretches"] for rank in results(trained(2), "slow_rank"))
        assert first == second
        assert first[-1] > 1
        run = headwatch.load(trained(2) / "slow_rank")
        assert run.steps()[-1] == scenarios.STEPS
        assert len(run.steps()) < scenarios.STEPS + 1
        assert sum("would cost more than max_overhead" in text for text in run.info["messages"]) == 1

    def test_ranks_with_different_layers_are_refused_on_all_of_them(self, trained):
        for rank in results(trained(2), "parts_of_a_model"):
            assert "rank 1 does not have blocks.2.attention.q_proj.weight" in rank["said"]
            assert "headwatch replay" in rank["said"]

    def test_a_resumed_training_goes_on_in_the_same_run(self, trained):
        results(trained(2), "resumed")
        run = headwatch.load(trained(2) / "resumed")
        rows = run.to_pandas()
        assert run.steps() == [0, 1, 3, 6, 8]
        first, last = (rows[rows.step == step][list("abcd")].to_numpy() for step in (0, 8))
        np.testing.assert_allclose(rows[rows.step == 8].drift, np.linalg.norm(last - first, axis=1), atol=1e-12)
