"""A BERT classifier with its own compute_metrics. evalq's workers evaluate it.

    evalq up -- python bert_classifier.py

A tiny BERT with random weights learns which of two tokens is more frequent in a sentence.
"""

import torch
import transformers


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        tokens = torch.randint(2, 30, (count, 13), generator=torch.Generator().manual_seed(seed))
        self.tokens = torch.where(tokens % 2 == 0, 2, 3)
        self.labels = (self.tokens == 2).sum(1) > 6

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index].long()}


def compute_metrics(prediction):
    predicted = prediction.predictions.argmax(-1)
    correct = predicted == prediction.label_ids
    positives = predicted[prediction.label_ids == 1]
    return {"accuracy": float(correct.mean()), "recall": float(positives.mean())}


def make_trainer(callbacks=None):
    transformers.set_seed(1)
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=2,
    )
    args = transformers.TrainingArguments(
        output_dir="out/bert",
        num_train_epochs=3,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        report_to="none",
    )
    return transformers.Trainer(
        model=transformers.BertForSequenceClassification(config),
        args=args,
        train_dataset=Sentences(800, 1),
        eval_dataset=Sentences(200, 2),
        compute_metrics=compute_metrics,
        callbacks=callbacks,
    )


if __name__ == "__main__":
    from evalq.integrations.transformers import EvalqCallback

    trainer = make_trainer(callbacks=[EvalqCallback("classifier")])
    trainer.train()
    print(f"best accuracy {trainer.state.best_metric:.3f} at step {trainer.state.best_global_step}")
