// Local response normalization across channels. Output channel i comes from channel i + offset of x. Its window is
// [i + offset - size / 2, i + offset + (size - 1) / 2], clipped to x.
#include "common.cuh"

#define GEOMETRY i64 images, i64 inputs, i64 outputs, i64 depth, i64 height, i64 width, i64 offset, i64 size

KERNEL lrn_forward(VIEW5(const REAL, x), VIEW5(REAL, out), VIEW5(REAL, scale), GEOMETRY, double alpha, double beta, double k) {
    const WIDE factor = (WIDE)(alpha / (double)size);
    GRID_STRIDE(item, images * outputs * depth * height * width) {
        const Place p = place(item, outputs, depth, height, width);
        Place read = p;
        const int center = p.c + (int)offset;
        WIDE sum = 0;
        for (read.c = center - (int)size / 2; read.c <= center + ((int)size - 1) / 2; read.c++) {
            if (read.c < 0 || read.c >= (int)inputs) continue;
            const WIDE value = AT5(x, read);
            sum += value * value;
        }
        const WIDE s = (WIDE)k + factor * sum;
        read.c = center;
        AT5(scale, p) = s;
        AT5(out, p) = AT5(x, read) * pow(s, (WIDE)-beta);
    }
}

// dx[c] = dy[c] / scale[c] ** beta - 2 * alpha * beta / size * x[c] * sum of dy[i] * out[i] / scale[i] over the outputs i that read c.
KERNEL lrn_backward(
    VIEW5(const REAL, x), VIEW5(const REAL, out), VIEW5(const REAL, scale), VIEW5(const REAL, dy), VIEW5(REAL, dx), GEOMETRY, double alpha,
    double beta) {
    const WIDE factor = (WIDE)(2.0 * alpha * beta / (double)size);
    GRID_STRIDE(item, images * inputs * depth * height * width) {
        const Place p = place(item, inputs, depth, height, width);
        Place from = p;
        const int center = p.c - (int)offset;
        WIDE sum = 0;
        for (from.c = center - ((int)size - 1) / 2; from.c <= center + (int)size / 2; from.c++) {
            if (from.c < 0 || from.c >= (int)outputs) continue;
            sum += AT5(dy, from) * AT5(out, from) / AT5(scale, from);
        }
        WIDE result = -factor * AT5(x, p) * sum;
        from.c = center;
        if (center >= 0 && center < (int)outputs) result += AT5(dy, from) * pow((WIDE)AT5(scale, from), (WIDE)-beta);
        AT5(dx, p) = result;
    }
}

#undef GEOMETRY
