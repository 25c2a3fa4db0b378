// Weight updates in one pass over strided boxes of up to five dimensions, such as parts of a weight matrix.
#include "common.cuh"

// The rule of One Weird Trick.
KERNEL sgd_update(
    REAL *w, REAL *velocity, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(velocity), STRIDES5(grad), double rate, double momentum,
    double decay) {
    const REAL r = (REAL)rate, m = (REAL)momentum, d = (REAL)decay;
    const auto formula = [=](REAL &w, REAL &velocity, const REAL &grad) {
        const REAL weight = w, v = m * velocity - r * (grad + d * weight);
        velocity = v;
        w = weight + v;
    };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(REAL, w), BOX5(REAL, velocity), BOX5(const REAL, grad));
}

// The same without momentum.
KERNEL plain_update(REAL *w, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(grad), double rate, double decay) {
    const auto formula = [=](REAL &w, const REAL &grad) { w -= (REAL)rate * (grad + (REAL)decay * w); };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(REAL, w), BOX5(const REAL, grad));
}

// Adam. `rate` and `spread` include bias correction: rate / (1 - beta1 ** step) and 1 / sqrt(1 - beta2 ** step).
KERNEL adam_update(
    REAL *w, REAL *first, REAL *second, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(first), STRIDES5(second), STRIDES5(grad),
    double rate, double spread, double beta1, double beta2, double eps, double decay) {
    const REAL b1 = (REAL)beta1, b2 = (REAL)beta2, rest1 = (REAL)(1 - beta1), rest2 = (REAL)(1 - beta2);
    const auto formula = [=](REAL &w, REAL &first, REAL &second, const REAL &grad) {
        const REAL weight = w, g = grad + (REAL)decay * weight;
        const REAL m = b1 * first + rest1 * g, v = b2 * second + rest2 * g * g;
        first = m;
        second = v;
        w = weight - (REAL)rate * m / (sqrt(v) * (REAL)spread + (REAL)eps);
    };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(REAL, w), BOX5(REAL, first), BOX5(REAL, second), BOX5(const REAL, grad));
}
