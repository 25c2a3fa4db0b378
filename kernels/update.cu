// Updates of the weights in one pass over boxes of up to five dimensions (parts of a weight matrix are strided).
#include "common.cuh"

// OWT's rule.
KERNEL sgd_update(
    REAL *w, REAL *velocity, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(velocity), STRIDES5(grad), double rate, double momentum,
    double decay) {
    const REAL r = (REAL)rate, m = (REAL)momentum, d = (REAL)decay;
    GRID_STRIDE(item, d0 * d1 * d2 * d3 * d4) {
        const Place5 p = place5(item, d1, d2, d3, d4);
        const REAL weight = w[OFFSET5(w, p)];
        const REAL v = m * velocity[OFFSET5(velocity, p)] - r * (grad[OFFSET5(grad, p)] + d * weight);
        velocity[OFFSET5(velocity, p)] = v;
        w[OFFSET5(w, p)] = weight + v;
    }
}

// The same without momentum.
KERNEL plain_update(REAL *w, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(grad), double rate, double decay) {
    GRID_STRIDE(item, d0 * d1 * d2 * d3 * d4) {
        const Place5 p = place5(item, d1, d2, d3, d4);
        const REAL weight = w[OFFSET5(w, p)];
        w[OFFSET5(w, p)] = weight - (REAL)rate * (grad[OFFSET5(grad, p)] + (REAL)decay * weight);
    }
}

// Adam; `rate` and `spread` hold the corrections of the bias: rate / (1 - beta1 ** step) and 1 / sqrt(1 - beta2 ** step).
KERNEL adam_update(
    REAL *w, REAL *first, REAL *second, const REAL *grad, SHAPE5, STRIDES5(w), STRIDES5(first), STRIDES5(second), STRIDES5(grad),
    double rate, double spread, double beta1, double beta2, double eps, double decay) {
    const REAL b1 = (REAL)beta1, b2 = (REAL)beta2, rest1 = (REAL)(1 - beta1), rest2 = (REAL)(1 - beta2);
    GRID_STRIDE(item, d0 * d1 * d2 * d3 * d4) {
        const Place5 p = place5(item, d1, d2, d3, d4);
        const REAL weight = w[OFFSET5(w, p)];
        const REAL g = grad[OFFSET5(grad, p)] + (REAL)decay * weight;
        const REAL m = b1 * first[OFFSET5(first, p)] + rest1 * g, v = b2 * second[OFFSET5(second, p)] + rest2 * g * g;
        first[OFFSET5(first, p)] = m;
        second[OFFSET5(second, p)] = v;
        w[OFFSET5(w, p)] = weight - (REAL)rate * m / (sqrt(v) * (REAL)spread + (REAL)eps);
    }
}
