"""Names that other tools, and the pages of the documentation, give to what hpcpar has.

Each dictionary maps names, in lower case with hyphens, to the answer in an error message.
"""

from __future__ import annotations


def _each(names: str, answer: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), answer)


FORMATS = {
    **_each("autocast bf16 bf16-mixed bfloat bfloat16 mixed mixed-precision",
            "write amp: bfloat16, with weights and sums in float32"),
    **_each("fp16 fp-16 f16 float16 half 16-mixed fp16-amp",
            "write amp-fp16: float16 with a loss scale, weights and sums in float32"),
    **_each("fp8 float8 int8 fp4", "the smallest format is amp, with 16 bits"),
    **_each("float32 f32 fp-32 single full", "write fp32"),
    **_each("float64 f64 double", "write fp64"),
}
STRATEGIES = {
    **_each("ddp dp dataparallel data-parallel batch", "write data"),
    **_each("fsdp zero zero1 zero2 zero3", "write data, and add --synchronization sharded"),
    **_each("tp tensor tensor-parallel megatron", "write filter, or grid:PRxPC with data parallel"),
    **_each("mp model model-parallel", "write filter, channel or pipeline"),
    **_each("pp gpipe", "write pipeline"),
    **_each("sp halo image", "write spatial, or domain:PRxPC with data parallel"),
    **_each("hybrid 2d 1.5d", "write grid:PRxPC, or df:P1xP2"),
    **_each("optcnn flexflow", "write layerwise"),
}
FRAMEWORKS = {
    **_each("pytorch torch distributeddataparallel apex", "write ddp"),
    **_each("tensorflow tf multiworkermirrored", "write mirrored, or horovod"),
    **_each("paddlepaddle", "write paddle"),
}
LOSSES = {
    **_each("ce crossentropy cross-entropy nll", "write softmax_cross_entropy"),
    **_each("bce binary-cross-entropy", "write logistic_cross_entropy"),
    **_each("mse l2", "write mean_squared_error"),
}
DEVICES = _each("cuda nvidia", "write gpu")
LAUNCHERS = {
    **_each("sbatch srun", "write slurm"),
    **_each("qsub torque openpbs", "write pbs, or sge for Grid Engine"),
    **_each("bsub jsrun", "write lsf"),
    **_each("mpiexec mpirun", "write local; --mpiexec names the program"),
}
COMMANDS = {
    **_each("why-slow profile analyze bottleneck",
            "hpcpar compare shows where a run's time goes, hpcpar trace draws it"),
    **_each("timeline perfetto", "hpcpar trace draws timelines"),
    **_each("train fit start launch infer", "hpcpar run trains"),
    **_each("resume resume-elsewhere", "write hpcpar run --resume CHECKPOINT"),
    "elastic": "write hpcpar run --elastic",
    **_each("benchmark bench measure", "hpcpar calibrate measures this machine, hpcpar sweep runs "
            "a scaling study"),
    "my-cluster": "hpcpar calibrate measures this machine, hpcpar machines --new describes another",
    **_each("scale scaling study submit", "hpcpar sweep runs a scaling study"),
    "batch-systems": "write hpcpar sweep --launcher, or start hpcpar run in a batch script",
    **_each("estimate price cost", "hpcpar predict prices plans"),
    "how-many-gpus": "hpcpar predict --efficiency, --deadline or --node-hours chooses the number",
    **_each("memory does-it-fit", "hpcpar plan and hpcpar predict say whether a plan fits"),
    **_each("search optimize split", "hpcpar plan finds the best plan"),
    **_each("check diagnose env install-at-a-site", "hpcpar doctor checks the installation"),
    **_each("test validate", "hpcpar verify checks a plan, hpcpar doctor the installation"),
    **_each("apply apply-for-compute-time", "hpcpar proposal writes the page"),
    **_each("models my-network", "hpcpar networks lists networks, and shows yours"),
    **_each("hardware presets devices", "hpcpar machines lists machines and devices"),
    **_each("dataset datasets digits", "hpcpar data makes data files"),
    **_each("torch convert checkpoint", "hpcpar weights converts checkpoints"),
    "report": "hpcpar compare reports runs, hpcpar sweep report a scaling study",
    "help": "write hpcpar --help, or hpcpar COMMAND --help",
    "version": "write hpcpar --version",
}
