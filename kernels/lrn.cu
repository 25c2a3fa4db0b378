// Local response normalisation across channels. Output channel i belongs to channel i + offset of x; its window is
// [i + offset - size / 2, i + offset + (size - 1) / 2] clipped to x.
#include "common.cuh"

KERNEL lrn_forward(
    VIEW4(const REAL, x), VIEW4(REAL, out), VIEW4(REAL, scale), i64 images, i64 inputs, i64 outputs, i64 height, i64 width, i64 offset,
    i64 size, double alpha, double beta, double k) {
    const REAL factor = (REAL)(alpha / (double)size);
    GRID_STRIDE(item, images * outputs * height * width) {
        const Place4 p = place4(item, (int)outputs, (int)height, (int)width);
        const int centre = p.c + (int)offset;
        REAL sum = 0;
        for (int j = centre - (int)size / 2; j <= centre + ((int)size - 1) / 2; j++) {
            if (j < 0 || j >= (int)inputs) continue;
            const REAL value = AT4(x, p.n, j, p.h, p.w);
            sum += value * value;
        }
        const REAL s = (REAL)k + factor * sum;
        AT4(scale, p.n, p.c, p.h, p.w) = s;
        AT4(out, p.n, p.c, p.h, p.w) = AT4(x, p.n, centre, p.h, p.w) * pow(s, (REAL)-beta);
    }
}

// dx[c] = dy[c] / scale[c] ** beta - 2 * alpha * beta / size * x[c] * sum of dy[i] * out[i] / scale[i] over the outputs i that read c.
KERNEL lrn_backward(
    VIEW4(const REAL, x), VIEW4(const REAL, out), VIEW4(const REAL, scale), VIEW4(const REAL, dy), VIEW4(REAL, dx), i64 images, i64 inputs,
    i64 outputs, i64 height, i64 width, i64 offset, i64 size, double alpha, double beta) {
    const REAL factor = (REAL)(2.0 * alpha * beta / (double)size);
    GRID_STRIDE(item, images * inputs * height * width) {
        const Place4 p = place4(item, (int)inputs, (int)height, (int)width);
        const int centre = p.c - (int)offset;
        REAL sum = 0;
        for (int i = centre - ((int)size - 1) / 2; i <= centre + (int)size / 2; i++) {
            if (i < 0 || i >= (int)outputs) continue;
            sum += AT4(dy, p.n, i, p.h, p.w) * AT4(out, p.n, i, p.h, p.w) / AT4(scale, p.n, i, p.h, p.w);
        }
        REAL result = -factor * AT4(x, p.n, p.c, p.h, p.w) * sum;
        if (centre >= 0 && centre < (int)outputs)
            result += AT4(dy, p.n, centre, p.h, p.w) * pow(AT4(scale, p.n, centre, p.h, p.w), (REAL)-beta);
        AT4(dx, p.n, p.c, p.h, p.w) = result;
    }
}
