"""Two nodes find each other by torchrun's rendezvous; here both are this machine."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import scenarios
import torch
from ranks import free_port

import headwatch

HERE = Path(__file__).parent


def test_two_nodes_are_one_run(tmp_path):
    place = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={place}", "--rdzv-id=tests"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, str(HERE / "node.py"), str(tmp_path)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        said = [node.communicate(timeout=200)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)
    assert sorted(p.read_text() for p in tmp_path.glob("node*.txt")) == ["0 of 2", "1 of 2"]
    run = headwatch.load(tmp_path)
    assert run.steps() == [0, 1, 2, 4, 6]
    net = scenarios.Net()
    net.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    alone, rows = headwatch.profile(net).to_pandas(), run.to_pandas()
    np.testing.assert_allclose(rows[rows.step == 6][list("abcd")], alone[list("abcd")], atol=1e-10)
