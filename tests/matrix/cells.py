"""The cells of the matrix: what a Trainer can be asked to do, each with how it ends."""

import datetime

import torch
from matrix_cell import Cell, with_validation
from matrix_cli import commanded
from matrix_fit import DOCUMENTS, both
from matrix_lightning import Other, other_trainer
from matrix_models import (
    Backbone,
    Bare,
    BatchSized,
    Checkpointed,
    Closures,
    CompiledInside,
    Compiles,
    Data,
    Endless,
    InFloat16,
    MadeLate,
    Scheduled,
    Skips,
    Tested,
    TimeRunsOut,
    TwoOptimizers,
)
from matrix_spawn import spawned
from pytorch_lightning.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
    WeightAveraging,
)
from pytorch_lightning.tuner import Tuner
from tiny import batches
from torch.utils.data import DataLoader

from headwatch.callbacks import MarginalAttentionMonitor, QKProfileMonitor


def _everything(trainer, model):
    trainer.validate(model, batches(n=8), verbose=False)
    trainer.fit(model, batches())
    trainer.test(model, batches(n=8), verbose=False)
    trainer.predict(model, batches(n=8))


LENGTH = (
    Cell("`max_steps=12`", 12),
    Cell(
        "`max_epochs=2`, 16 batches each, validation after each",
        32,
        {"max_steps": -1, "max_epochs": 2},
        fit=with_validation,
    ),
    Cell("`fast_dev_run=True`", 1, {"fast_dev_run": True}, fit=with_validation),
    Cell("`fast_dev_run=3`", 3, {"fast_dev_run": 3}, fit=with_validation),
    Cell(
        "`overfit_batches=2`, 3 epochs",
        6,
        {"max_steps": -1, "max_epochs": 3, "overfit_batches": 2},
        fit=with_validation,
    ),
    Cell(
        "`max_time`, which runs out at step 7",
        7,
        {"max_steps": -1, "max_epochs": 9, "max_time": datetime.timedelta(hours=1)},
        callbacks=lambda: [TimeRunsOut(7)],
    ),
    Cell(
        "`limit_train_batches=3`, `limit_val_batches=1`, 2 epochs",
        6,
        {"max_steps": -1, "max_epochs": 2, "limit_train_batches": 3, "limit_val_batches": 1},
        fit=with_validation,
    ),
    Cell(
        "`val_check_interval=2`, `num_sanity_val_steps=2`",
        12,
        {"val_check_interval": 2, "num_sanity_val_steps": 2},
        fit=with_validation,
    ),
    Cell("a stream without length", 12, fit=lambda t, m: t.fit(m, DataLoader(Endless(), batch_size=4))),
    Cell("a data module", 12, fit=lambda t, m: t.fit(m, datamodule=Data())),
    Cell(
        "`reload_dataloaders_every_n_epochs=1`, data of the module",
        12,
        {"reload_dataloaders_every_n_epochs": 1, "limit_train_batches": 5},
        BatchSized,
        fit=lambda t, m: t.fit(m),
    ),
    Cell("`barebones=True`", 12, {"barebones": True, "enable_checkpointing": None, "num_sanity_val_steps": None}),
    Cell("`detect_anomaly=True`, `deterministic=True`", 12, {"detect_anomaly": True, "deterministic": True}),
    Cell("a Trainer of `lightning.pytorch`", 12, model=Other, trainer=other_trainer),
    Cell("LightningCLI, monitors in YAML", 12, run=commanded),
)

STEPS = (
    Cell("`accumulate_grad_batches=3`", 12, {"accumulate_grad_batches": 3}),
    Cell(
        "`GradientAccumulationScheduler({0: 1, 1: 4})`, 2 epochs of 8 batches",
        10,
        {"max_steps": -1, "max_epochs": 2, "limit_train_batches": 8},
        callbacks=lambda: [GradientAccumulationScheduler({0: 1, 1: 4})],
    ),
    Cell(
        "manual optimization, two optimizers by turns; `max_steps=17` is overstepped",
        18,
        {"max_steps": 17},
        TwoOptimizers,
    ),
    Cell("batches skipped by returning `None`", 12, {}, Skips),
    Cell("LBFGS: several closures a step", 6, {"max_steps": 6}, Closures),
    Cell("learning rate schedule, `gradient_clip_val=0.5`", 12, {"gradient_clip_val": 0.5}, Scheduled),
    Cell(
        "`Tuner.lr_find`, then `fit`",
        12,
        fit=lambda t, m: (Tuner(t).lr_find(m, batches(), num_training=15), t.fit(m, batches())),
        note=lambda t: "the search is not watched",
    ),
    Cell(
        "`Tuner.scale_batch_size`, then `fit`",
        12,
        {},
        BatchSized,
        fit=lambda t, m: (Tuner(t).scale_batch_size(m, max_trials=2, steps_per_trial=2), t.fit(m)),
        note=lambda t: f"the search is not watched; batch size {t.lightning_module.batch_size}",
    ),
    Cell(
        "`LearningRateFinder` as a callback",
        12,
        callbacks=lambda: [LearningRateFinder(num_training_steps=15)],
        note=lambda t: "the search is not watched",
    ),
    Cell(
        "`BatchSizeFinder` as a callback",
        12,
        {},
        BatchSized,
        callbacks=lambda: [BatchSizeFinder(max_trials=2, steps_per_trial=2)],
        fit=lambda t, m: t.fit(m),
        note=lambda t: "the search is not watched",
    ),
)

MODELS = (
    Cell("layers made in `configure_model`", 12, {}, MadeLate),
    Cell("no `forward`: the network is an attribute", 12, {}, Bare),
    Cell("gradient checkpointing", 12, {}, Checkpointed),
    Cell(
        "`BackboneFinetuning`: frozen for 2 epochs of 4 batches, then trained",
        16,
        {"max_steps": -1, "max_epochs": 4, "limit_train_batches": 4},
        Backbone,
        callbacks=lambda: [BackboneFinetuning(unfreeze_backbone_at_epoch=2)],
    ),
    Cell(
        "`WeightAveraging`, validation in between",
        12,
        {"val_check_interval": 3},
        callbacks=lambda: [WeightAveraging()],
        fit=with_validation,
    ),
    Cell(
        "`EMAWeightAveraging(decay=0.9)`, validation in between",
        12,
        {"val_check_interval": 3},
        callbacks=lambda: [EMAWeightAveraging(decay=0.9)],
        fit=with_validation,
    ),
    Cell(
        "`StochasticWeightAveraging`, 4 epochs of 4 batches",
        16,
        {"max_steps": -1, "max_epochs": 4, "limit_train_batches": 4},
        callbacks=lambda: [StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2)],
    ),
    Cell(
        "two monitors of each class, told apart by `name=`",
        12,
        monitors=lambda: [
            *both(),
            QKProfileMonitor(3, early_steps=(1, 2), name="biased", biases=True, on_error="raise", max_overhead=1.0),
            MarginalAttentionMonitor(
                DOCUMENTS[:2], 6, early_steps=(1, 2), name="two-docs", on_error="raise", max_overhead=1.0
            ),
        ],
        every={"profile": 5, "signature": 4, "profile-biased": 3, "signature-two-docs": 6},
    ),
    Cell('`strategy="ddp_spawn"`, `devices=2`', 6, run=spawned),
)


def _graphs(trainer):
    assert trainer.lightning_module.graphs > 0
    return "as many graphs compiled as without"


WITHOUT_TRAINING = (
    Cell("`Trainer.validate` alone", 0, {}, Tested, fit=lambda t, m: t.validate(m, batches(), verbose=False), runs=0),
    Cell("`Trainer.test` alone", 0, {}, Tested, fit=lambda t, m: t.test(m, batches(), verbose=False), runs=0),
    Cell("`Trainer.predict` alone", 0, {}, Tested, fit=lambda t, m: t.predict(m, batches()), runs=0),
    Cell("`max_steps=0`", 0, {"max_steps": 0}, runs=0),
    Cell("`limit_train_batches=0`", 0, {"limit_train_batches": 0}, runs=0),
    Cell("`validate`, then `fit`, then `test` and `predict`", 12, {}, Tested, fit=_everything),
)

COMPILED = (
    Cell(
        "`torch.compile` of the LightningModule, validation in between",
        6,
        {"max_steps": 6, "val_check_interval": 3},
        Compiles,
        prepare=lambda model: torch.compile(model, backend=model.backend),
        fit=with_validation,
        note=_graphs,
    ),
    Cell(
        "`torch.compile` of the network inside, `fullgraph=True`, validation in between",
        12,
        {"val_check_interval": 3},
        CompiledInside,
        fit=with_validation,
        note=_graphs,
    ),
    Cell(
        "`Module.compile()` of every block in place",
        12,
        {},
        Compiles,
        prepare=lambda model: ([block.compile(backend=model.backend) for block in model.blocks], model)[1],
        note=_graphs,
    ),
)


def _ran_as(trainer):
    weights = next(trainer.lightning_module.parameters()).dtype
    return f"ran as {trainer.precision}, weights {str(weights).removeprefix('torch.')}"


PRECISIONS = (
    Cell('`precision="bf16-mixed"`', 12, {"precision": "bf16-mixed"}, note=_ran_as),
    Cell('`precision="bf16-true"`', 12, {"precision": "bf16-true"}, note=_ran_as),
    Cell('`precision="16-mixed"`', 12, {"precision": "16-mixed"}, note=lambda t: f"on a CPU Lightning {_ran_as(t)}"),
    Cell('`precision="16-true"`, SGD', 12, {"precision": "16-true"}, InFloat16, note=_ran_as),
    Cell('`precision="64-true"`', 12, {"precision": "64-true"}, note=_ran_as),
)

SECTIONS = {
    "How long, on which data": LENGTH,
    "How it steps": STEPS,
    "What the model does": MODELS,
    "Beside training": WITHOUT_TRAINING,
    "Compiled": COMPILED,
    "Precision": PRECISIONS,
}
CELLS = [cell for cells in SECTIONS.values() for cell in cells]
