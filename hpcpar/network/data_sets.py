"""The data sets of the built-in networks: sizes of an epoch where none is given."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.network.graph import Network


@dataclass(frozen=True)
class DataSet:
    """A data set and the networks that train on it.

    Attributes
    ----------
    samples : int
        Samples of an epoch.
    shape : tuple of (int or None)
        Shape of a sample; None stands for any extent.
    outputs : int
        Number of outputs of its networks.
    targets : bool
        Whether these are numbers instead of classes.
    """

    name: str
    samples: int
    shape: tuple[int | None, ...]
    outputs: int
    targets: bool = False


#: ImageNet as the papers count it: color images of any size in 1000 classes. CosmoFlow as MLPerf
#: HPC trains it.
DATA_SETS = (DataSet("ImageNet", 1_200_000, (3, None, None), 1000),
             DataSet("MNIST", 60_000, (1, 28, 28), 10),
             DataSet("CosmoFlow", 524_288, (4, 128, 128, 128), 4, targets=True))


def data_set_of(network: Network) -> DataSet | None:
    """The data set that a network of this input and output usually trains on; None if unknown."""
    shape, loss = network.image_shape, network.loss
    for data in DATA_SETS:
        if (network.shapes[loss.name] == (data.outputs,) and loss.takes_targets == data.targets
                and len(shape) == len(data.shape)
                and all(n in (None, m) for n, m in zip(data.shape, shape, strict=True))):
            return data
    return None
