from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyHpcpar(PythonPackage):
    """Plans, predicts, runs and compares the parallel training of convolutional networks."""

    # the path of a checkout, or the address of its repository
    homepage = "file:///path/to/hpcpar"
    git = "file:///path/to/hpcpar"

    license("MIT")

    version("main", branch="main")

    variant("mpi", default=True, description="Run on MPI ranks")
    variant("plot", default=True, description="Draw pictures")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-h5py@3.10: ~mpi", type=("build", "run"))
    depends_on("py-ml-dtypes@0.4:", type=("build", "run"))
    depends_on("py-msgspec@0.19:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-shtab@1.6:", type=("build", "run"))
    depends_on("py-tomli@2:", type=("build", "run"), when="^python@:3.10")
    depends_on("py-tomli-w@1:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"), when="+mpi")
    depends_on("py-matplotlib@3.8:", type=("build", "run"), when="+plot")
