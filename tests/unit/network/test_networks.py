"""Layers, relations, graphs and the built-in networks, without any framework."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.errors import InputError
from hpcpar.network.builder import Chain, Graph
from hpcpar.network.builtin import NETWORKS, network
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    AvgPool3d,
    BatchNorm,
    Clip,
    Concat,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    Dropout,
    Expand,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    Input,
    LeakyReLU,
    Linear,
    LogisticCrossEntropy,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MeanSquaredError,
    Multiply,
    Pad,
    ReLU,
    Select,
    SoftmaxCrossEntropy,
    Upsample,
)
from hpcpar.network.receptive_field import (
    Full,
    Granule,
    Groups,
    Interpolated,
    Offset,
    Periodic,
    Relation,
    Same,
    Transposed,
    Window,
)
from hpcpar.plan.axis import Axis, intervals

FIXED = settings(max_examples=120)

SMALL = st.integers(1, 5)
RELATIONS: st.SearchStrategy[Relation] = st.one_of(
    st.just(Same()),
    st.just(Full()),
    st.builds(Window, SMALL, SMALL, st.integers(0, 4), st.integers(1, 3)),
    st.builds(Transposed, SMALL, SMALL, st.integers(0, 4), st.integers(1, 3)),
    st.builds(Interpolated, SMALL, SMALL, st.integers(-4, 4), st.integers(1, 2)),
    st.builds(Periodic, st.integers(0, 4)),
    st.builds(Groups, SMALL, SMALL, SMALL),
    st.builds(Granule, SMALL),
    st.builds(Offset, st.integers(0, 12), st.integers(1, 12)),
)


@FIXED
@given(RELATIONS, st.integers(1, 20), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)),
                                               min_size=1, max_size=12))
def test_intervals_of_arrays_equal_each_parts(relation: Relation, extent: int,
                                              cases: list[tuple[int, int]]) -> None:
    out = extent if isinstance(relation, Same) else 12
    axis = Axis("h", extent, out, 1, relation)
    cases = [(parts, index % parts) for parts, index in cases]
    one = [axis.interval(parts, index) for parts, index in cases]
    assert all(type(x) is int for interval in one for x in interval)
    lo, hi = intervals(axis, *np.array(cases).T)
    assert list(zip(lo.tolist(), hi.tolist(), strict=True)) == one
    parts = cases[0][0]
    lo, hi = intervals(axis, parts, np.arange(parts))
    assert [(int(a), int(b)) for a, b in zip(lo, hi, strict=True)] == [
        axis.interval(parts, index) for index in range(parts)]


@FIXED
@given(st.lists(SMALL, min_size=2, max_size=5), st.data())
def test_concat_needs_each_channel_once(channels: list[int], data: st.DataObject) -> None:
    names = tuple("abcde"[:len(channels)])
    layer = Concat("y", names, channels=tuple(channels))
    shapes = [(c, 2, 2) for c in channels]
    total = sum(channels)
    assert layer.output_shape(*shapes) == (total, 2, 2)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    needed = [layer.relation("c", x, i).needed(start, stop, x[0]) for i, x in enumerate(shapes)]
    assert all(0 <= a <= b <= x[0] for (a, b), x in zip(needed, shapes, strict=True))
    found = [o + i for (a, b), o in zip(needed, itertools.accumulate((0, *channels)), strict=False)
             for i in range(a, b)]
    assert found == list(range(start, stop))


def test_layers_state_their_inputs_shapes_and_work() -> None:
    image, volume = (6, 9, 8), (6, 7, 9, 8)
    conv = Conv3d("c", ("x",), out_channels=4, kernel=(1, 3, 5), stride=(1, 2, 1), padding=2,
                  groups=2)
    assert conv.padding == (2, 2, 2) and conv.output_shape(volume) == (4, 11, 6, 8)
    assert conv.windows() == (Window(1, 1, 2), Window(3, 2, 2), Window(5, 1, 2))
    assert (
        [conv.relation(a, volume) for a in "dhw"]
        == list(conv.windows())
        == [conv.window(a) for a in "dhw"]
    )
    assert conv.relation("c", volume) == Groups(2, 2, 3) and conv.weight_shape(volume) == (
        4, 3, 1, 3, 5)
    assert conv.forward_flops(volume) == 2 * 4 * 3 * 15 * 11 * 6 * 8
    assert Conv2d("c", ("x",), kernel=(3, 1)).window("w") == Window(1)
    assert MaxPool3d("p", ("x",)).output_shape(volume) == (6, 3, 4, 4)
    assert AvgPool3d("p", ("x",), kernel=3, stride=1,
                     padding=1).forward_flops(volume) == 27 * 6 * 7 * 9 * 8
    for x in image, volume:
        mean = GlobalAvgPool("g", ("x",))
        assert mean.output_shape(x) == (6,)
        assert [mean.relation(a, x) for a in "nchw"] == [Same(), Same(), Full(), Full()]
    for x in (6,), image, volume:
        norm = BatchNorm("b", ("x",))
        assert norm.output_shape(x) == x and norm.weight_shape(x) == norm.bias_shape(x) == (6,)
        assert norm.parameters(x) == norm.buffers(
            x) == 12 and norm.has_weights and not norm.is_matmul
        assert norm.relation("c", x) == norm.relation("h", x) == Same()
    assert Add("a", ("x", "y", "z")).forward_flops(image) == 2 * 6 * 9 * 8
    assert MeanSquaredError("m", ("x",)).relation("c", (4,)) == Same()


def residual() -> Graph:
    """A residual block and a concatenation."""
    net = Graph("residual", (3, 8, 8))
    x = net.add(Conv2d, "stem", out_channels=4, kernel=3, padding=1)
    net.add(BatchNorm, "bn")
    y = net.add(ReLU, "relu")
    total = net.add(Add, "add", after=(x, y))
    net.add(Concat, "join", after=[y, net.add(Conv2d, "side", after=total, out_channels=5)])
    for layer, name in (GlobalAvgPool, "mean"), (Linear, "fc"), (SoftmaxCrossEntropy, "loss"):
        net.add(layer, name)
    return net


def test_a_graph_knows_its_edges() -> None:
    net = residual().build()
    assert not net.is_chain and network("lenet5").is_chain
    assert (
        net.consumers["relu"] == ("add", "join")
        and net.consumers["stem"] == ("bn", "add")
        and net.consumers["loss"] == ()
    )
    join = net.by_name["join"]
    assert join == Concat("join", ("relu", "side"), channels=(4, 5)) and net.shapes["join"] == (
        9, 8, 8)
    assert net.input_shapes(join) == ((4, 8, 8), (5, 8, 8)) and net.input_shape(join) == (4, 8, 8)
    assert [x.name for x in net.matmul_layers] == ["stem", "side", "fc"]
    assert [x.name for x in net.weighted] == ["stem", "bn", "side", "fc"]
    assert net.parameters == (4 * 27 + 4) + 8 + (5 * 4 + 5) + (9 + 1)
    assert net.input_shape(net.layers[0]) == () and net.input_shapes(net.layers[0]) == ()


def test_a_chain_equals_the_same_graph() -> None:
    chain = Chain("tiny", (1, 4, 4)).add(Flatten, "flat").add(Linear, "fc",
                                                              out_features=3).add(
        SoftmaxCrossEntropy, "loss")
    graph = Graph("tiny", (1, 4, 4))
    graph.add(Flatten, "flat", after="input")
    graph.add(Linear, "fc", out_features=3)
    graph.add(SoftmaxCrossEntropy, "loss")
    assert chain.build() == graph.build() and chain.build().is_chain


def wrong(*steps: tuple[Any, ...]) -> None:
    """Add (layer, name, after, options) to an input of 3 x 8 x 8, and build."""
    net = Graph("net", (3, 8, 8))
    for layer, name, *rest in steps:
        net.add(layer, name, after=rest[0] if rest else None, **(rest[1] if len(rest) > 1 else {}))
    net.build()


END = ((Flatten, "flat"), (Linear, "fc"), (SoftmaxCrossEntropy, "loss"))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (((ReLU, "a"), (ReLU, "a")), "two layers named 'a'"),
        (((ReLU, "a", "b"),), "'a' reads 'b', which is not defined"),
        (((ReLU, "a"), (ReLU, "b", "input"), (Flatten, "flat"), (SoftmaxCrossEntropy, "loss")),
         "no layer reads the output of 'a'"),
        (((ReLU, "a"),), "end with a loss"),
        (END + END[-1:], "two layers named 'loss'"),
        ((*END, (ReLU, "a"), (SoftmaxCrossEntropy, "loss2")),
         "'loss' (softmax_cross_entropy) is in the middle"),
        (((ReLU, "a", ("input", "input")),), "each input may be read once"),
        (((ReLU, "a"), (ReLU, "b", ("input", "a"))),
         "'b' (relu) reads 2 inputs, not 1; only add, multiply and concat"),
        (((Add, "a"),), "'a' (add) reads 1 inputs; name at least two"),
        (((ReLU, ""),), "must not be empty"),
        (((ReLU, "a/b"),), "'a/b' (relu): a name must not"),
        (((MaxPool2d, "p"), (Add, "a", ("input", "p"))),
         "adds 'input' of shape (3, 8, 8) and 'p' of shape (3, 4, 4)"),
        (((MaxPool2d, "p"), (Concat, "c", ("input", "p"))),
         "joins 'input' of shape (3, 8, 8) and 'p' of shape (3, 4, 4)"),
        (((ReLU, "a"), (Concat, "c", ("input", "a"), {"channels": (3, 4)})),
         "expects inputs with (3, 4) channels, but they have (3, 3)"),
        (((Conv3d, "c"),), "'c' (conv3d) needs a volume C x D x H x W"),
        (((Flatten, "f"), (Conv2d, "c")), "'c' (conv2d) needs an image C x H x W"),
        (((Flatten, "f"), (GlobalAvgPool, "g")), "'g' (globalavgpool) needs an image"),
        (((Flatten, "f"), (GlobalMaxPool, "g")), "'g' (globalmaxpool) needs an image"),
        (((MaxPool2d, "p"), (Multiply, "m", ("input", "p"))),
         "'m' (multiply) reads shapes (3, 8, 8), (3, 4, 4); name two inputs of one shape"),
        (((GlobalAvgPool, "g"), (Multiply, "m", ("g", "input"))),
         "an image and then one feature per channel"),
        (((ReLU, "a"), (ReLU, "b", "input"), (Multiply, "m", ("input", "a", "b"))),
         "name two inputs"),
        (((Multiply, "m"),), "'m' (multiply) reads 1 inputs; name at least two"),
        (((Multiply, "m", ("input", "input")),), "each input may be read once"),
        (((LeakyReLU, "a", None, {"slope": -0.1}),), "'a' (leaky_relu): slope=-0.1; give a number"),
        (((Clip, "a", None, {"low": 2.0, "high": 2.0}),), "low must be less than high"),
        (((Linear, "fc"),), "put a flatten before it"),
        (((LogisticCrossEntropy, "loss"),), "put a flatten before it"),
        (((Conv2d, "c", None, {"kernel": (3, 3, 3)}),),
         "kernel=(3, 3, 3); give 2 whole numbers of at least 1"),
        (((Conv2d, "c", None, {"stride": 0}),), "stride=0; give 2"),
        (((Conv2d, "c", None, {"filters": 3}),),
         "unexpected keyword argument 'filters'; see the fields of Conv2d"),
        (((Conv2d, "c", None, {"out_channels": 0}),), "both must be at least 1"),
        (((Conv2d, "c", None, {"groups": 2}),), "choose a common divisor"),
        (((Conv2d, "c", None, {"kernel": 9}),), "a window of 9 does not fit an input of 8"),
        (((MaxPool2d, "p", None, {"padding": 2}),), "exceeds half the pooling window"),
        (((Linear, "fc", None, {"out_features": 0}),), "give at least 1"),
        (((Conv1d, "c"),), "'c' (conv1d) needs a signal C x W, but its input has shape (3, 8, 8)"),
        (((MaxPool1d, "p"),), "'p' (maxpool1d) needs a signal C x W"),
        (((ConvTranspose2d, "t", None, {"output_padding": 1}),),
         "output_padding (1, 1) must be less than stride (1, 1)"),
        (((ConvTranspose2d, "t", None, {"kernel": 3, "padding": 5}),),
         "use larger images or less padding"),
        (((Upsample, "u", None, {"mode": "cubic"}),), "mode 'cubic'; use nearest or linear"),
        (((Upsample, "u", None, {"align_corners": True}),), "align_corners needs mode linear"),
        (((Upsample, "u", None, {"scale": (2, 0)}),), "2 whole numbers of at least 1, as a tuple"),
        (((Upsample, "u", None, {"scale": 2}),), "scale=2 for an input (3, 8, 8); give 2"),
        (((Pad, "p", None, {"begin": (1,)}),), "begin=(1,) for an input (3, 8, 8); give 2"),
        (((Pad, "p", None, {"mode": "mirror"}),), "mode 'mirror'; use constant, periodic"),
        (((Pad, "p", None, {"mode": "edge", "channels": (0, 1)}),), "only constant padding adds"),
        (((Pad, "p", None, {"begin": (8, 0), "mode": "reflect"}),), "pad by less than its extent"),
        (((Select, "s", None, {"channels": (0, 3)}),), "channel 3 of an input with 3"),
        (((Select, "s", None, {"begin": (0, 4), "step": (1, 2), "size": (8, 3)}),),
         "do not fit in an input (3, 8, 8)"),
        (((Expand, "s", None, {"size": (2, 2)}),), "needs features"),
        (((Dropout, "d", None, {"unit": "row"}),), "unit 'row'; use value, channel or sample"),
        (((Pad, "p", None, {"begin": (9, 0), "mode": "periodic"}),), "pad by at most its extent"),
    ],
)
def test_graph_errors_name_the_layer(steps: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError) as err:
        wrong(*steps)
    assert message in str(err.value) and "\n" not in str(err.value)


def test_networks_without_a_builder_are_checked_too() -> None:
    first, loss = Input("x", (), (4,)), SoftmaxCrossEntropy("loss", ("x",))
    assert Network("ok", (first, loss)).classes == 4
    for layers, message in [
        ((), "must begin with an input"),
        ((loss,), "must begin with an input"),
        ((first, Input("y", (), (4,)), loss), "'y' (input) is in the middle"),
        ((first, ReLU("a"), loss), "'a' (relu) reads 0 inputs, not 1"),
        ((first, ReLU("a", ("b",)), ReLU("b", ("x",)), loss),
         "'a' reads 'b', which is not defined before it"),
        ((Input("x", (), (1, 2, 3, 4, 5)), loss), "input 'x' has shape (1, 2, 3, 4, 5)"),
        ((Input("x", (), (0,)), loss), "input 'x' has shape (0,)"),
    ]:
        with pytest.raises(InputError) as err:
            Network("net", tuple(layers))  # type: ignore[arg-type]
        assert message in str(err.value)


#: Published numbers of parameters (torchvision's for those after AlexNet).
COUNTS = {
    "alexnet": 60_965_224,
    "alexnet-owt": 61_838_248,
    "vgg16": 138_357_544,
    "vgg16_bn": 138_365_992,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "inception_v3": 23_834_568,
    "mobilenet_v2": 3_504_872,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_builtin_networks_have_their_published_parameters(name: str) -> None:
    net = network(name)
    assert net.parameters == COUNTS.get(name, net.parameters) and net.name == name
    assert (net.image_shape, net.classes) == NETWORKS[name][1:]
    assert network(name, classes=7).classes == 7
    assert net.is_chain == (name not in ("resnet50", "resnet152", "inception_v3", "mobilenet_v2",
                                         "unet", "unet3d"))


def test_signals_become_images_of_one_row() -> None:
    net = Graph("signals", (6, 40))
    net.add(Conv1d, "conv", out_channels=4, kernel=5, stride=2, padding=1)
    net.add(Upsample, "up", scale=(3,))
    net.add(Pad, "pad", begin=(2,), end=(1,))
    assert net.shapes["conv"] == (4, 1, 19) and net.shapes["pad"] == (4, 1, 60)
    for name, layer in (("one", Flatten), ("fc", Linear), ("loss", SoftmaxCrossEntropy)):
        net.add(layer, name)
    assert net.build().image_shape == (6, 1, 40)
    assert net.build().by_name["conv"].weight_shape((6, 1, 40)) == (4, 6, 1, 5)


def test_unets_keep_any_image_size() -> None:
    for name, shape in ("unet", (3, 37, 50)), ("unet", (1, 3, 9)), ("unet3d", (2, 11, 8, 17)):
        net = network(name, shape)
        assert net.shapes["loss"] == (net.classes, *shape[1:]) and net.truth_shape == shape[1:]


def test_builtin_sizes() -> None:
    for size, parameters in (128, 3_283_060), (256, 5_052_788), (512, 6_822_516):
        assert network("cosmoflow", (4, size, size, size)).parameters == parameters
    # four are projections
    assert [len(network(f"resnet{n}").matmul_layers) for n in (50, 152)] == [50 + 4, 152 + 4]
    with_21841 = network("alexnet", classes=21841)
    assert with_21841.parameters - COUNTS["alexnet"] == 4097 * (21841 - 1000)
    for name, shape in (("cosmoflow", (4, 8, 16, 8)), ("resnet50", (3, 32, 32)),
                        ("inception_v3", (3, 75, 75)), ("vgg16", (3, 32, 32)),
                        ("mobilenet_v2", (3, 32, 32))):
        assert network(name, shape).image_shape == shape


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("resnet", None, None, "did you mean 'resnet50'"),
        ("cosmoflow", (3, 224, 224), None, "takes inputs CxDxHxW, not 3x224x224"),
        ("resnet50", (3, 8, 224, 224), None, "takes inputs CxHxW, not 3x8x224x224"),
        ("resnet50", (3, 0, 224), None, "give positive numbers"),
        ("resnet50", (), None, "give positive numbers"),
        ("resnet50", None, 0, "give positive numbers"),
        ("inception_v3", (3, 40, 40), None, "does not fit"),
    ],
)
def test_wrong_builtin_networks_are_refused(name: str, shape: tuple[int, ...] | None,
                                            classes: int | None, message: str) -> None:
    with pytest.raises(InputError) as err:
        network(name, shape, classes)
    assert message in str(err.value)
