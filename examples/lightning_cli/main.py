"""headwatch in a LightningCLI project: nothing of it in the code, all of it in the YAML file.

    pip install 'jsonargparse[signatures]'
    python examples/lightning_cli/main.py fit --config examples/lightning_cli/config.yaml    about a minute on 2 cores

Look for: the store under cli-runs/headwatch/; `headwatch report cli-runs` makes its page.
"""

import pytorch_lightning as pl
from pytorch_lightning.cli import LightningCLI
from torch.utils.data import DataLoader

from headwatch.demo.model import TextDecoder
from headwatch.demo.text import load_text, loaders


class Text(pl.LightningDataModule):
    """Batches of text.

    Args:
        batch_size: windows in a batch.
        context: bytes in a window.
        steps: batches in an epoch.
    """

    def __init__(self, batch_size: int = 16, context: int = 64, steps: int = 200) -> None:
        super().__init__()
        self.shape = {"batch_size": batch_size, "context": context, "steps": steps}

    def train_dataloader(self) -> DataLoader:
        return loaders(load_text().tokens(), **self.shape, seed=0)[0]


if __name__ == "__main__":
    LightningCLI(TextDecoder, Text, seed_everything_default=0)
