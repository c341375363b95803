"""The Hugging Face Trainer.

    pip install transformers accelerate
    python examples/hf_trainer.py          about 2 minutes on 2 cores
    python examples/hf_trainer.py --fast   a few seconds

Look for: a Llama with grouped queries, four query heads on two key-value heads. Heads that share a key share a fate?
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import headwatch
from headwatch.demo.text import Windows, load_text


class Examples(torch.utils.data.Dataset):
    """Windows of text as the Trainer wants them."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.windows[index]
        return {"input_ids": window, "labels": window}


def main(fast: bool) -> None:
    steps, size = (8, 2) if fast else (300, 16)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_hidden_layers=3, **shape))
    tokens = load_text().tokens()
    watch = headwatch.HuggingFaceMonitor(probe=Windows(tokens, 64, count=8, seed=1).batch())
    arguments = TrainingArguments(
        output_dir="hf-trainer",
        max_steps=steps,
        per_device_train_batch_size=size,
        learning_rate=1e-3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    data = Examples(Windows(tokens, 64, count=steps * size))
    Trainer(model, arguments, train_dataset=data, callbacks=[watch]).train()
    table = headwatch.load("hf-trainer").to_pandas()
    print(table.groupby(["kv_head", "step"])[["stable_rank", "drift"]].median())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a few steps, to see that it runs")
    main(**vars(parser.parse_args()))
