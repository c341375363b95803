"""kill -9 at random moments: the store reads every time, and a resumed run has each due step once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("kill_driver.py")
pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs os.fork")


def drive(mode, root, kills):
    command = [sys.executable, "-W", "ignore", str(DRIVER), mode, str(root), str(kills), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_fifty_kills_while_writing(tmp_path):
    said = drive("writing", tmp_path, 50)
    print(said)
    assert said["kills"] == 50
    assert said["last_step"] > 50
    assert said["missing"] == []


def test_kills_of_a_training_that_resumes_from_its_checkpoints(tmp_path):
    said = drive("training", tmp_path, 20)
    print(said)
    assert said["kills"] == 20
    assert said["missing"] == said["late"] == []
    assert said["largest_gap"] == 2
    assert said["left_in_tmp"] == 0
    assert said["status"] == "finished"
