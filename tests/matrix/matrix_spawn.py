"""Two processes that Lightning spawns: everything is pickled. Run as a script, for it has to be killed if it hangs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 280.0  # seconds


def spawned(root, cell):
    """Both trainings in processes of their own; what rank 0 wrote down is compared."""
    from matrix_fit import Seen, look

    places = [str(HERE), str(HERE.parent / "callbacks")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-W", "ignore", str(HERE / "matrix_spawn.py"), str(root), str(cell.last)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    assert process.returncode == 0, output
    plain, watched = (json.loads((root / name / "rank0.json").read_text()) for name in ("plain", "watched"))
    return look(root / "watched", Seen(watched["steps"], plain == watched, note="two processes, gloo"))


def _main(root, last):
    import pytorch_lightning as pl
    from matrix_fit import both
    from matrix_models import Recorded
    from tiny import batches, trainer

    # forks are quick and do for the comparison, as long as there are no threads
    for name, strategy, monitors in (("plain", "ddp_fork", []), ("watched", "ddp_spawn", both())):
        pl.seed_everything(3)
        run = trainer(root / name, monitors, max_steps=last, strategy=strategy, devices=2)
        run.fit(Recorded(), batches())


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
