// Activation functions and their gradients; Backend.activation_forward has the formulas.
#ifndef HPCPAR_ACTIVATION_CUH
#define HPCPAR_ACTIVATION_CUH

// In the order of ACTIVATIONS in interface.py.
enum Activation { RELU, LEAKY_RELU, CLIP, SIGMOID, TANH, SILU, GELU, ELU, MISH, AFFINE };

DEVICE WIDE act_sigmoid(WIDE x) { return (WIDE)1 / ((WIDE)1 + exp(-x)); }
DEVICE WIDE act_normal(WIDE x) { return ((WIDE)1 + erf(x * (WIDE)0.70710678118654752440)) / (WIDE)2; }
DEVICE WIDE act_tanh_of_gelu(WIDE x) { return tanh((WIDE)0.79788456080286535588 * x * ((WIDE)1 + (WIDE)0.044715 * x * x)); }
DEVICE WIDE act_tanh_of_mish(WIDE x) { return tanh(x > (WIDE)0 ? x + log1p(exp(-x)) : log1p(exp(x))); }

DEVICE WIDE act_value(int function, WIDE a, WIDE b, WIDE x) {
    switch (function) {
        case RELU: return x < (WIDE)0 ? (WIDE)0 : x;
        case LEAKY_RELU: return x > (WIDE)0 ? x : a * x;
        case CLIP: return x < a ? a : x > b ? b : x;
        case SIGMOID: return act_sigmoid(x);
        case TANH: return tanh(x);
        case SILU: return x * act_sigmoid(x);
        case GELU: return x * (a > (WIDE)0 ? ((WIDE)1 + act_tanh_of_gelu(x)) / (WIDE)2 : act_normal(x));
        case ELU: return b * (x > (WIDE)0 ? x : a * expm1(x));
        case MISH: return x * act_tanh_of_mish(x);
        default: return a * x + b;
    }
}

// k is x for SILU, GELU and MISH, otherwise f(x).
DEVICE WIDE act_gradient(int function, WIDE a, WIDE b, WIDE k, WIDE dy) {
    const WIDE one = 1;
    switch (function) {
        case RELU: return k > (WIDE)0 ? dy : (WIDE)0;
        case LEAKY_RELU: return k > (WIDE)0 ? dy : a * dy;
        case CLIP: return k > a && k < b ? dy : (WIDE)0;
        case SIGMOID: return dy * k * (one - k);
        case TANH: return dy * (one - k * k);
        case SILU: {
            const WIDE s = act_sigmoid(k);
            return dy * s * (one + k * (one - s));
        }
        case GELU:
            if (a > (WIDE)0) {
                const WIDE t = act_tanh_of_gelu(k);
                return dy * (one + t + k * (one - t * t) * (WIDE)0.79788456080286535588 * (one + (WIDE)0.134145 * k * k)) / (WIDE)2;
            }
            return dy * (act_normal(k) + k * exp(-k * k / (WIDE)2) * (WIDE)0.39894228040143267794);
        case ELU: return dy * (k > (WIDE)0 ? b : k + a * b);
        case MISH: {
            const WIDE t = act_tanh_of_mish(k);
            return dy * (t + k * (one - t * t) * act_sigmoid(k));
        }
        default: return a * dy;
    }
}

#endif
