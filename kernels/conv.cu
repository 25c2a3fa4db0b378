// Lowering of one group of a convolution to a matrix product:
// cols[((c * kd + t) * kh + u) * kw + v][((n * od + k) * oh + i) * ow + j].
// The second dimension of the grid runs over channels, the first over the pixels of all images of a block (fewer than 2**31).
#include "common.cuh"

#define GEOMETRY \
    i64 images, i64 channels, i64 depth, i64 height, i64 width, i64 od, i64 oh, i64 ow, i64 kd, i64 kh, i64 kw, i64 sd, i64 sh, i64 sw, \
        i64 dd, i64 dh, i64 dw, i64 pd, i64 ph, i64 pw

DEVICE bool inside(int i, i64 extent) { return i >= 0 && i < (int)extent; }

// The output that reads position `t` of the padded input with its tap u, or -1.
DEVICE int reader(int t, int u, i64 stride, i64 dilation, i64 outputs) {
    const int from = t - u * (int)dilation, out = from / (int)stride;
    return from < 0 || out >= (int)outputs || out * (int)stride != from ? -1 : out;
}

// cols = the inputs of every output; inputs outside x are zero.
KERNEL im2col(VIEW5(const REAL, x), REAL *__restrict__ cols, GEOMETRY) {
    const i64 places = images * od * oh * ow;
    for (i64 c = blockIdx.y; c < channels; c += gridDim.y) {
        GRID_STRIDE(item, places) {
            const Place p = place(item, 1, od, oh, ow);
            const REAL *image = x + p.n * x_n + c * x_c;
            const int d0 = p.d * (int)sd - (int)pd, h0 = p.h * (int)sh - (int)ph, w0 = p.w * (int)sw - (int)pw;
            REAL *col = cols + c * kd * kh * kw * places + item;
            for (int t = 0; t < (int)kd; t++) {
                const int d = d0 + t * (int)dd;
                for (int u = 0; u < (int)kh; u++) {
                    const int h = h0 + u * (int)dh;
                    const bool row = inside(d, depth) && inside(h, height);
                    for (int v = 0; v < (int)kw; v++) {
                        const int w = w0 + v * (int)dw;
                        *col = row && inside(w, width) ? image[d * x_d + h * x_h + w * x_w] : (REAL)0;
                        col += places;
                    }
                }
            }
        }
    }
}

// dx (+)= adjoint of im2col. Each element of dx gathers the columns that read it, in the order of (t, u, v).
KERNEL col2im(const REAL *__restrict__ cols, VIEW5(REAL, dx), i64 add, GEOMETRY) {
    const i64 places = images * od * oh * ow;
    for (i64 c = blockIdx.y; c < channels; c += gridDim.y) {
        GRID_STRIDE(item, images * depth * height * width) {
            Place p = place(item, 1, depth, height, width);
            const REAL *col = cols + c * kd * kh * kw * places + p.n * (od * oh * ow);
            WIDE sum = 0;
            for (int t = 0; t < (int)kd; t++) {
                const int k = reader(p.d + (int)pd, t, sd, dd, od);
                for (int u = 0; k >= 0 && u < (int)kh; u++) {
                    const int i = reader(p.h + (int)ph, u, sh, dh, oh);
                    for (int v = 0; i >= 0 && v < (int)kw; v++) {
                        const int j = reader(p.w + (int)pw, v, sw, dw, ow);
                        if (j >= 0) sum += col[((t * kh + u) * kw + v) * places + (k * oh + i) * ow + j];
                    }
                }
            }
            p.c = (int)c;
            REAL *to = &AT5(dx, p);
            *to = add ? *to + sum : sum;
        }
    }
}

#undef GEOMETRY
