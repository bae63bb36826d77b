"""Keras 3, evaluated by evalq's workers. It resumes at its last epoch.

    evalq up -c keras_fit.yaml -- python keras_fit.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy

inputs = numpy.random.default_rng(1).normal(size=(2000, 4)).astype("float32")
targets = numpy.sin(inputs.sum(1, keepdims=True))


def make_model():
    layers = [keras.Input((4,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


warm = make_model()


def evaluate(checkpoint):
    """Runs in the workers, which import this file once."""
    warm.load_weights(checkpoint.path)
    return warm.evaluate(inputs[1000:], targets[1000:], verbose=0, return_dict=True)


if __name__ == "__main__":
    import evalq

    client = evalq.Client(run="keras")
    path = "out/keras/epoch-{epoch}.keras"
    callbacks = [
        keras.callbacks.ModelCheckpoint(path),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: client.submit(
                path.format(epoch=epoch + 1), step=epoch + 1, suites="eval"
            )
        ),
        keras.callbacks.BackupAndRestore("out/keras-backup"),
    ]
    model = make_model()
    model.fit(inputs[:1000], targets[:1000], epochs=8, verbose=0, callbacks=callbacks)
    client.wait(timeout=600)
    for result in client.results():
        if result.task:
            print(f"epoch {result.step}: {result.metric} {result.value:.4f}")
    best = client.best("eval/eval/loss", "min")
    if best:
        model.load_weights(best.path)
    print("best:", best)
