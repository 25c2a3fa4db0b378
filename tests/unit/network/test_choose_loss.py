"""The loss that a network is given by its name, and notes on those that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import hpcpar
from hpcpar.errors import InputError
from hpcpar.network.builder import Chain, loss_notes, with_loss
from hpcpar.network.builtin import network
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Conv2d,
    DiceCrossEntropy,
    Flatten,
    Linear,
    LogisticCrossEntropy,
    Loss,
    MeanSquaredError,
    Sigmoid,
    SoftmaxCrossEntropy,
)
from hpcpar.network.layers.loss import LOSSES
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan import plan as plans


def small(outputs: int, loss: type[Loss], *ends: type[Any]) -> Network:
    net = Chain("small", (2, 5, 4)).add(Flatten, "flat").add(Linear, "fc", out_features=outputs)
    for end in ends:
        net.add(end, end.__name__.lower())
    return net.add(loss, "loss").build()


def test_the_loss_takes_the_place_of_the_last_layer() -> None:
    unet = network("unet", (3, 16, 16), 3)
    assert with_loss(unet) is unet
    changed = with_loss(unet, "dice_cross_entropy", 0.1)
    last = unet.layers[-1]
    assert changed.layers[:-1] == unet.layers[:-1]
    assert changed.loss == DiceCrossEntropy(last.name, last.inputs, label_smoothing=0.1)
    assert with_loss(changed, "dice_cross_entropy") == changed  # its smoothing, too
    assert with_loss(changed, "softmax_cross_entropy") == unet
    assert with_loss(unet, label_smoothing=0.3).loss == SoftmaxCrossEntropy(
        last.name, last.inputs, label_smoothing=0.3)


def test_a_plan_holds_the_loss_and_its_smoothing(tmp_path: Any) -> None:
    unet = {"network": "unet", "input": "3x16x16", "ranks": 2, "batch": 4, "strategy": "spatial"}
    path = str(tmp_path / "plan.json")
    hpcpar.plan(**unet, loss="dice_cross_entropy", label_smoothing=0.25).save(path)
    loss = plans.load(path).network.build().loss
    assert (type(loss), loss.label_smoothing) == (DiceCrossEntropy, 0.25)
    usual = hpcpar.plan(**unet).plan.network
    assert usual == NetworkSpec("unet", (3, 16, 16), 2) and not usual.layers
    assert hpcpar.predict(plan=path).predictions[0].network == "unet"


@pytest.mark.parametrize(("options", "message"), [
    ({"loss": "dice_entropy"}, "unknown value 'dice_entropy'; did you mean 'dice_cross_entropy'"),
    ({"loss": "dice_cross_entropy"}, "needs an image with a class for each pixel, but its input "
     "has shape \\(10,\\); use softmax_cross_entropy"),
    ({"loss": "mean_squared_error", "label_smoothing": 0.1}, "mean_squared_error has no label "
     "smoothing: drop --label-smoothing, or use --loss softmax_cross_entropy"),
    ({"label_smoothing": 1}, "'1' is not a number of at least 0 and below 1"),
])
def test_losses_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hpcpar.plan("lenet5", 2, 4, strategy="data", **options)


def test_predicting_a_plan_fixes_the_loss() -> None:
    plan = hpcpar.plan("lenet5", 2, 4, strategy="data")
    with pytest.raises(InputError, match="--label-smoothing has no effect with --plan"):
        hpcpar.predict(plan=plan, label_smoothing=0.1)


def test_a_users_loss_is_chosen_by_its_kind() -> None:
    @dataclass(frozen=True)
    class Own(MeanSquaredError):
        kind: ClassVar[str] = "own"

    try:
        assert isinstance(with_loss(network("lenet5"), "own").loss, Own)
        with pytest.raises(InputError, match=r"loss 'softmax_cross_entropy' is already defined in "
                                             r"hpcpar\.network\.layers\.loss; rename the one in"):
            type("Other", (Loss,), {"kind": "softmax_cross_entropy"})
    finally:
        del LOSSES["own"]
    assert "outputs" not in LOSSES


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy, LogisticCrossEntropy])
def test_losses_over_classes_are_noted_after_one_output_or_a_sigmoid(loss: type[Loss]) -> None:
    (note,) = loss_notes(small(1, loss))
    assert note.startswith(f"it has one output, from which {loss.kind} learns nothing")
    (note,) = loss_notes(small(4, loss, Sigmoid))
    assert note.startswith(f"it ends in a sigmoid, but {loss.kind} expects logits")
    assert [*loss_notes(small(4, loss))] == []
    assert [*loss_notes(with_loss(small(1, loss, Sigmoid), "mean_squared_error"))] == []


def test_notes_concern_the_chosen_loss(capsys: pytest.CaptureFixture[str]) -> None:
    net = Chain("masks", (1, 8, 8)).add(Conv2d, "conv", out_channels=1, kernel=1).add(
        Sigmoid, "sigmoid").add(MeanSquaredError, "loss").build()
    hpcpar.plan(net, 1, 2, strategy="data")
    assert "note:" not in capsys.readouterr().err
    hpcpar.plan(net, 1, 2, strategy="data", loss="dice_cross_entropy")
    shown = capsys.readouterr().err
    assert "it has one output, from which dice_cross_entropy learns nothing" in shown
    assert "it ends in a sigmoid, but dice_cross_entropy expects logits" in shown
