"""Numbers of the types that products compute in."""

COMPUTE_TYPE_FP32, COMPUTE_TYPE_TF32 = 3, 4
