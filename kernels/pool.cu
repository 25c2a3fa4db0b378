// Pooling. Both backward kernels gather: an element of dx looks up the windows that hold it.
#include "common.cuh"

#define GEOMETRY i64 images, i64 channels, i64 height, i64 width, i64 oh, i64 ow, i64 kh, i64 kw, i64 sh, i64 sw, i64 ph, i64 pw

// argmax is the row-major place in the window, the first of several equal ones; a NaN is the maximum, as in NumPy.
// A window wholly outside x gets minus infinity and place 0, which is outside x too: no gradient goes there.
KERNEL maxpool_forward(VIEW4(const REAL, x), VIEW4(REAL, out), VIEW4(short, argmax), GEOMETRY) {
    GRID_STRIDE(item, images * channels * oh * ow) {
        const Place4 p = place4(item, (int)channels, (int)oh, (int)ow);
        const int h0 = p.h * (int)sh - (int)ph, w0 = p.w * (int)sw - (int)pw;
        REAL best = 0;
        int where = -1;
        for (int u = 0; u < (int)kh; u++) {
            if (h0 + u < 0 || h0 + u >= (int)height) continue;
            for (int v = 0; v < (int)kw; v++) {
                if (w0 + v < 0 || w0 + v >= (int)width) continue;
                const REAL value = AT4(x, p.n, p.c, h0 + u, w0 + v);
                if (where < 0 || value > best || (value != value && best == best)) {
                    best = value;
                    where = u * (int)kw + v;
                }
            }
        }
        AT4(out, p.n, p.c, p.h, p.w) = where < 0 ? (REAL)(-1.0 / 0.0) : best;
        AT4(argmax, p.n, p.c, p.h, p.w) = (short)(where < 0 ? 0 : where);
    }
}

KERNEL maxpool_backward(VIEW4(const REAL, dy), VIEW4(const short, argmax), VIEW4(REAL, dx), GEOMETRY) {
    GRID_STRIDE(item, images * channels * height * width) {
        const Place4 p = place4(item, (int)channels, (int)height, (int)width);
        const int h = p.h + (int)ph, w = p.w + (int)pw;
        const int j0 = first_window(w, (int)kw, (int)sw);
        REAL sum = 0;
        for (int i = first_window(h, (int)kh, (int)sh); i <= last_window(h, (int)sh) && i < (int)oh; i++) {
            for (int j = j0; j <= last_window(w, (int)sw) && j < (int)ow; j++) {
                const int place = (h - i * (int)sh) * (int)kw + w - j * (int)sw;
                if (AT4(argmax, p.n, p.c, i, j) == place) sum += AT4(dy, p.n, p.c, i, j);
            }
        }
        AT4(dx, p.n, p.c, p.h, p.w) = sum;
    }
}

// Average pooling with one factor per output row and one per output column: the borders' rule is the caller's.
KERNEL avgpool_forward(
    VIEW4(const REAL, x), const REAL *__restrict__ scale_h, const REAL *__restrict__ scale_w, VIEW4(REAL, out), GEOMETRY) {
    GRID_STRIDE(item, images * channels * oh * ow) {
        const Place4 p = place4(item, (int)channels, (int)oh, (int)ow);
        const int h0 = p.h * (int)sh - (int)ph, w0 = p.w * (int)sw - (int)pw;
        REAL sum = 0;
        for (int h = h0 < 0 ? 0 : h0; h < h0 + (int)kh && h < (int)height; h++)
            for (int w = w0 < 0 ? 0 : w0; w < w0 + (int)kw && w < (int)width; w++) sum += AT4(x, p.n, p.c, h, w);
        AT4(out, p.n, p.c, p.h, p.w) = scale_h[p.h] * scale_w[p.w] * sum;
    }
}

KERNEL avgpool_backward(
    VIEW4(const REAL, dy), const REAL *__restrict__ scale_h, const REAL *__restrict__ scale_w, VIEW4(REAL, dx), GEOMETRY) {
    GRID_STRIDE(item, images * channels * height * width) {
        const Place4 p = place4(item, (int)channels, (int)height, (int)width);
        const int h = p.h + (int)ph, w = p.w + (int)pw;
        const int j0 = first_window(w, (int)kw, (int)sw);
        REAL sum = 0;
        for (int i = first_window(h, (int)kh, (int)sh); i <= last_window(h, (int)sh) && i < (int)oh; i++)
            for (int j = j0; j <= last_window(w, (int)sw) && j < (int)ow; j++)
                sum += scale_h[i] * scale_w[j] * AT4(dy, p.n, p.c, i, j);
        AT4(dx, p.n, p.c, p.h, p.w) = sum;
    }
}

#undef GEOMETRY
