"""A Transformers Trainer whose checkpoints are evaluated by evalq's workers.

    evalq up -- python transformers_trainer.py

For evalq, this program only adds the line with EvalqCallback. The workers call make_trainer() once,
and then Trainer.evaluate() for each checkpoint. A tiny GPT-2 with random weights learns to count,
so nothing is downloaded.
"""

import torch
import transformers


class Counting(torch.utils.data.Dataset):
    """Sequences n, n + 1, n + 2, ... modulo 64."""

    def __init__(self, first, last):
        self.rows = [(torch.arange(16) + start) % 64 for start in range(first, last)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def make_trainer(callbacks=None):
    transformers.set_seed(1)
    config = transformers.GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    args = transformers.TrainingArguments(
        output_dir="out/transformers",
        num_train_epochs=4,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        eval_strategy="steps",
        eval_steps=50,
        save_steps=50,
        save_total_limit=1,
        load_best_model_at_end=True,
        logging_steps=50,
        report_to="none",
    )
    return transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=args,
        train_dataset=Counting(0, 400),
        eval_dataset=Counting(400, 464),
        callbacks=callbacks,
    )


if __name__ == "__main__":
    from evalq.integrations.transformers import EvalqCallback

    trainer = make_trainer(callbacks=[EvalqCallback("trainer")])
    trainer.train()
    for entry in trainer.state.log_history:
        if "eval_loss" in entry:
            print(f"step {entry['step']:>4}: eval_loss {entry['eval_loss']:.4f}")
    print("best:", trainer.state.best_model_checkpoint)
