// Activation functions and their gradients over strided boxes.
#include "common.cuh"
#include "activation.cuh"

// out may be x, and dx may be dy: each thread reads an element before it writes it.
KERNEL activation_forward(const REAL *x, REAL *out, SHAPE5, STRIDES5(x), STRIDES5(out), double function, double a, double b) {
    const auto formula = [=](const REAL &x, REAL &out) { out = act_value((int)function, (WIDE)a, (WIDE)b, x); };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(const REAL, x), BOX5(REAL, out));
}

KERNEL activation_backward(
    const REAL *kept, const REAL *dy, REAL *dx, SHAPE5, STRIDES5(kept), STRIDES5(dy), STRIDES5(dx), double function, double a, double b) {
    const auto formula = [=](const REAL &kept, const REAL &dy, REAL &dx) {
        dx = act_gradient((int)function, (WIDE)a, (WIDE)b, kept, dy);
    };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(const REAL, kept), BOX5(const REAL, dy), BOX5(REAL, dx));
}

// out = f(x + y); out may be x or y.
KERNEL add_activation(
    const REAL *x, const REAL *y, REAL *out, SHAPE5, STRIDES5(x), STRIDES5(y), STRIDES5(out), double function, double a, double b) {
    const auto formula = [=](const REAL &x, const REAL &y, REAL &out) { out = act_value((int)function, (WIDE)a, (WIDE)b, (REAL)(x + y)); };
    for_each(d0, d1, d2, d3, d4, formula, BOX5(const REAL, x), BOX5(const REAL, y), BOX5(REAL, out));
}
