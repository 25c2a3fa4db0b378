// Activation functions and their gradients; Backend.activation_forward has the formulas.
#ifndef HPCPAR_ACTIVATION_CUH
#define HPCPAR_ACTIVATION_CUH

// In the order of ACTIVATIONS in interface.py.
enum Activation { RELU, LEAKY_RELU, CLIP, SIGMOID, TANH, SILU, GELU, ELU, MISH, AFFINE };

DEVICE REAL act_sigmoid(REAL x) { return (REAL)1 / ((REAL)1 + exp(-x)); }
DEVICE REAL act_normal(REAL x) { return ((REAL)1 + erf(x * (REAL)0.70710678118654752440)) / (REAL)2; }
DEVICE REAL act_tanh_of_gelu(REAL x) { return tanh((REAL)0.79788456080286535588 * x * ((REAL)1 + (REAL)0.044715 * x * x)); }
DEVICE REAL act_tanh_of_mish(REAL x) { return tanh(x > (REAL)0 ? x + log1p(exp(-x)) : log1p(exp(x))); }

DEVICE REAL act_value(int function, REAL a, REAL b, REAL x) {
    switch (function) {
        case RELU: return x < (REAL)0 ? (REAL)0 : x;
        case LEAKY_RELU: return x > (REAL)0 ? x : a * x;
        case CLIP: return x < a ? a : x > b ? b : x;
        case SIGMOID: return act_sigmoid(x);
        case TANH: return tanh(x);
        case SILU: return x * act_sigmoid(x);
        case GELU: return x * (a > (REAL)0 ? ((REAL)1 + act_tanh_of_gelu(x)) / (REAL)2 : act_normal(x));
        case ELU: return b * (x > (REAL)0 ? x : a * expm1(x));
        case MISH: return x * act_tanh_of_mish(x);
        default: return a * x + b;
    }
}

// k is x for SILU, GELU and MISH, otherwise f(x).
DEVICE REAL act_gradient(int function, REAL a, REAL b, REAL k, REAL dy) {
    const REAL one = 1;
    switch (function) {
        case RELU: return k > (REAL)0 ? dy : (REAL)0;
        case LEAKY_RELU: return k > (REAL)0 ? dy : a * dy;
        case CLIP: return k > a && k < b ? dy : (REAL)0;
        case SIGMOID: return dy * k * (one - k);
        case TANH: return dy * (one - k * k);
        case SILU: {
            const REAL s = act_sigmoid(k);
            return dy * s * (one + k * (one - s));
        }
        case GELU:
            if (a > (REAL)0) {
                const REAL t = act_tanh_of_gelu(k);
                return dy * (one + t + k * (one - t * t) * (REAL)0.79788456080286535588 * (one + (REAL)0.134145 * k * k)) / (REAL)2;
            }
            return dy * (act_normal(k) + k * exp(-k * k / (REAL)2) * (REAL)0.39894228040143267794);
        case ELU: return dy * (k > (REAL)0 ? b : k + a * b);
        case MISH: {
            const REAL t = act_tanh_of_mish(k);
            return dy * (t + k * (one - t * t) * act_sigmoid(k));
        }
        default: return a * dy;
    }
}

#endif
