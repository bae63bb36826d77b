"""TRL's SFTTrainer, evaluated by evalq's workers.

    evalq up -c trl_sft.yaml -- python trl_sft.py
"""

import datasets
import trl
from tiny_model import make_model, make_tokenizer


def sums(first, last):
    rows = [(a, b) for a in range(first, last) for b in range(10)]
    return datasets.Dataset.from_list([{"text": f"{a}+{b}={a + b}"} for a, b in rows])


def make_trainer(callbacks=None):
    args = trl.SFTConfig(
        output_dir="out/trl-sft",
        max_steps=30,
        learning_rate=3e-3,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=10,
        load_best_model_at_end=True,
        report_to="none",
        bf16=False,
    )
    return trl.SFTTrainer(
        make_model(),
        args,
        train_dataset=sums(0, 50),
        eval_dataset=sums(50, 60),
        processing_class=make_tokenizer(),
        callbacks=callbacks,
    )


if __name__ == "__main__":
    from evalq.integrations.transformers import EvalqCallback

    trainer = make_trainer(callbacks=[EvalqCallback("sft")])
    trainer.train()
    for entry in trainer.state.log_history:
        if "eval_loss" in entry:
            print(f"step {entry['step']}: eval_loss {entry['eval_loss']:.4f}")
    print("best:", trainer.state.best_model_checkpoint)
