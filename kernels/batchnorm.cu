// Batch normalisation by channel: sums and statistics in double whatever REAL is.
#include "common.cuh"

#define EXTENTS i64 images, i64 channels, i64 depth, i64 height, i64 width

// A block of threads sums one of `parts` shares of a channel's items: blocks along x take shares, along y channels. The caller adds
// up out[c][part]: (sum of x, sum of x * x), and below (sum of dy, sum of dy * (x - mean) * inv_std).
#define FOR_SHARES \
    const i64 items = images * depth * height * width; \
    for (i64 c = blockIdx.y; c < channels; c += gridDim.y) \
        for (i64 part = blockIdx.x; part < parts; part += gridDim.x)

KERNEL channel_moments(VIEW5(const REAL, x), double *out, EXTENTS, i64 parts) {
    __shared__ double shared[MAX_THREADS];
    FOR_SHARES {
        double sum = 0, squares = 0;
        for (i64 item = part * items / parts + threadIdx.x; item < (part + 1) * items / parts; item += blockDim.x) {
            Place p = place(item, 1, depth, height, width);
            p.c = (int)c;
            const double value = (double)AT5(x, p);
            sum += value;
            squares += value * value;
        }
        sum = block_sum(sum, shared);
        squares = block_sum(squares, shared);
        if (threadIdx.x == 0) {
            out[(c * parts + part) * 2] = sum;
            out[(c * parts + part) * 2 + 1] = squares;
        }
    }
}

KERNEL channel_moments_backward(
    VIEW5(const REAL, x), VIEW5(const REAL, dy), const double *mean, const double *inv_std, double *out, EXTENTS, i64 parts) {
    __shared__ double shared[MAX_THREADS];
    FOR_SHARES {
        double sum = 0, products = 0;
        for (i64 item = part * items / parts + threadIdx.x; item < (part + 1) * items / parts; item += blockDim.x) {
            Place p = place(item, 1, depth, height, width);
            p.c = (int)c;
            const double gradient = (double)AT5(dy, p);
            sum += gradient;
            products += gradient * ((double)AT5(x, p) - mean[c]);
        }
        sum = block_sum(sum, shared);
        products = block_sum(products, shared);
        if (threadIdx.x == 0) {
            out[(c * parts + part) * 2] = sum;
            out[(c * parts + part) * 2 + 1] = products * inv_std[c];
        }
    }
}

// Mean and 1 / sqrt(variance + eps) from sums; moves `running` [2, channels] towards them if `update`.
KERNEL batchnorm_statistics(
    VIEW2(const double, moments), double *mean, double *inv_std, VIEW2(REAL, running), i64 update, i64 channels, double count, double eps,
    double momentum) {
    GRID_STRIDE(c, channels) {
        const double m = AT2(moments, c, 0) / count, difference = AT2(moments, c, 1) / count - m * m;
        // Rounding must not make the variance of a constant channel negative; a NaN stays.
        const double variance = difference < 0 ? 0 : difference;
        mean[c] = m;
        inv_std[c] = 1.0 / sqrt(variance + eps);
        if (update) {
            const double unbiased = count > 1 ? variance * (count / (count - 1)) : variance;
            AT2(running, 0, c) += (REAL)(momentum * (m - (double)AT2(running, 0, c)));
            AT2(running, 1, c) += (REAL)(momentum * (unbiased - (double)AT2(running, 1, c)));
        }
    }
}

KERNEL batchnorm_running(VIEW2(const REAL, running), double *mean, double *inv_std, i64 channels, double eps) {
    GRID_STRIDE(c, channels) {
        mean[c] = (double)AT2(running, 0, c);
        inv_std[c] = 1.0 / sqrt((double)AT2(running, 1, c) + eps);
    }
}

KERNEL batchnorm_forward(
    SHARED5(const REAL, x), const double *mean, const double *inv_std, const REAL *w, const REAL *b, SHARED5(REAL, out), EXTENTS) {
    GRID_STRIDE(item, images * channels * depth * height * width) {
        const Place p = place(item, channels, depth, height, width);
        const double factor = inv_std[p.c] * (double)w[p.c];
        AT5(out, p) = AT5(x, p) * (REAL)factor + (REAL)((double)b[p.c] - mean[p.c] * factor);
    }
}

KERNEL batchnorm_backward(
    SHARED5(const REAL, x), SHARED5(const REAL, dy), const double *mean, const double *inv_std, const REAL *w, VIEW2(const double, sums),
    SHARED5(REAL, dx), EXTENTS, double count) {
    GRID_STRIDE(item, images * channels * depth * height * width) {
        const Place p = place(item, channels, depth, height, width);
        // dx = of_dy * dy + of_x * x + addend
        const double of_dy = inv_std[p.c] * (double)w[p.c], of_x = -inv_std[p.c] * inv_std[p.c] * AT2(sums, p.c, 1) / count;
        const REAL addend = (REAL)(-inv_std[p.c] * AT2(sums, p.c, 0) / count - of_x * mean[p.c]);
        AT5(dx, p) = (REAL)of_dy * AT5(dy, p) + ((REAL)of_x * AT5(x, p) + addend);
    }
}

#undef EXTENTS
#undef FOR_SHARES
