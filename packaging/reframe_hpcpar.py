"""A ReFrame test: trains on two ranks, and watches the time of an iteration and its prediction."""

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class HpcparRun(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    prerun_cmds = [
        "hpcpar data synthetic images.h5 --input 1x8x8 --classes 10 --samples 256",
        "hpcpar plan --network lenet5 --input 1x8x8 --batch 64 --ranks 2 -o plan.json"]
    # under a scheduler: num_tasks = 2 and no -n, ReFrame's launcher starts the ranks
    executable = "hpcpar run -n 2 --plan plan.json --data images.h5 --epochs 8 --out run.h5"
    postrun_cmds = ["hpcpar compare run.h5 --json"]
    reference = {"*": {"measured_s": (0.02, None, 1.0, "s"), "accuracy": (1.0, None, None, "1")}}

    @sanity_function
    def compared(self):
        return sn.assert_found(r'"measured_iteration_s"', self.stdout)

    @performance_function("s")
    def measured_s(self):
        return sn.extractsingle(r'^ *"measured_iteration_s": (\S+),$', self.stdout, 1, float)

    @performance_function("1")
    def accuracy(self):
        return sn.extractsingle(r'^ *"accuracy": (\S+),$', self.stdout, 1, float)
