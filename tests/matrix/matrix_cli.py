"""LightningCLI with the monitors in its YAML file."""

from matrix_fit import EARLY, EVERY, Seen, Steps, fingerprint, look
from matrix_models import Data
from pytorch_lightning.cli import LightningCLI
from tiny import Tiny

TRAINER = """
seed_everything: 3
trainer:
  max_steps: 12
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  default_root_dir: {root}
"""
SETTINGS = f"early_steps: {list(EARLY)}, max_overhead: 1.0, on_error: raise"
MONITORS = f"""
  callbacks:
    - class_path: headwatch.callbacks.QKProfileMonitor
      init_args: {{every_n_train_steps: {EVERY["profile"]}, {SETTINGS}}}
    - class_path: headwatch.callbacks.MarginalAttentionMonitor
      init_args: {{probe: 1, every_n_train_steps: {EVERY["signature"]}, {SETTINGS}}}
"""


def commanded(root, cell):
    """``python main.py fit --config config.yaml``, without and with the monitors."""
    seen = {}
    for name, callbacks in (("plain", ""), ("watched", MONITORS)):
        config = root / f"{name}.yaml"
        config.write_text(TRAINER.format(root=root / name) + callbacks)
        steps = Steps()
        cli = LightningCLI(
            Tiny,
            Data,
            args=["fit", "--config", str(config)],
            save_config_callback=None,
            trainer_defaults={"callbacks": steps},
        )
        seen[name] = (fingerprint(cli.model, cli.trainer), steps.seen)
    note = "signatures on a validation batch"
    return look(root / "watched", Seen(seen["watched"][1], seen["plain"] == seen["watched"], note=note))
