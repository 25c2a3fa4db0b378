// Lowering of one group of a convolution to a matrix product: cols[(c * kh + u) * kw + v][(n * oh + i) * ow + j].
// The grid's second dimension runs over channels, the first over the places of all images of the block (fewer than 2**31).
#include "common.cuh"

#define GEOMETRY \
    i64 images, i64 channels, i64 height, i64 width, i64 oh, i64 ow, i64 kh, i64 kw, i64 sh, i64 sw, i64 dh, i64 dw, i64 ph, i64 pw

// cols = the reads of every output; reads outside x are zero.
KERNEL im2col(VIEW4(const REAL, x), REAL *__restrict__ cols, GEOMETRY) {
    const i64 places = images * oh * ow;
    for (i64 c = blockIdx.y; c < channels; c += gridDim.y) {
        GRID_STRIDE(place, places) {
            const Place4 p = place4(place, 1, (int)oh, (int)ow);
            const REAL *image = x + p.n * x_n + c * x_c;
            const int h0 = p.h * (int)sh - (int)ph, w0 = p.w * (int)sw - (int)pw;
            REAL *col = cols + c * kh * kw * places + place;
            for (int u = 0; u < (int)kh; u++) {
                const int h = h0 + u * (int)dh;
                const bool row = h >= 0 && h < (int)height;
                for (int v = 0; v < (int)kw; v++) {
                    const int w = w0 + v * (int)dw;
                    *col = row && w >= 0 && w < (int)width ? image[h * x_h + w * x_w] : (REAL)0;
                    col += places;
                }
            }
        }
    }
}

// dx (+)= the adjoint of im2col. Every element gathers the columns that read it, in the order of (u, v).
KERNEL col2im(const REAL *__restrict__ cols, VIEW4(REAL, dx), i64 add, GEOMETRY) {
    const i64 places = images * oh * ow;
    for (i64 c = blockIdx.y; c < channels; c += gridDim.y) {
        GRID_STRIDE(item, images * height * width) {
            const Place4 p = place4(item, 1, (int)height, (int)width);
            const REAL *col = cols + c * kh * kw * places + p.n * (oh * ow);
            REAL sum = 0;
            for (int u = 0; u < (int)kh; u++) {
                const int h = p.h + (int)ph - u * (int)dh, i = h / (int)sh;
                if (h < 0 || i >= (int)oh || i * (int)sh != h) continue;
                for (int v = 0; v < (int)kw; v++) {
                    const int w = p.w + (int)pw - v * (int)dw, j = w / (int)sw;
                    if (w < 0 || j >= (int)ow || j * (int)sw != w) continue;
                    sum += col[(u * kw + v) * places + i * ow + j];
                }
            }
            REAL *to = &AT4(dx, p.n, c, p.h, p.w);
            *to = add ? *to + sum : sum;
        }
    }
}

#undef GEOMETRY
