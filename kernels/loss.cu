// Losses, with one thread block per sample (its size is a power of two, at most MAX_THREADS) and double sums in a fixed order.
// loss[n] and hits[n] are per sample; the caller adds them up. Samples with a negative label are ignored.
#include "common.cuh"

KERNEL softmax_cross_entropy(
    VIEW2(const REAL, x), const i64 *labels, VIEW2(REAL, dx), double *loss, double *hits, i64 samples, i64 classes, double scale) {
    __shared__ double part[MAX_THREADS];
    __shared__ WIDE value[MAX_THREADS];
    __shared__ i64 place[MAX_THREADS];
    for (i64 n = blockIdx.x; n < samples; n += gridDim.x) {
        const i64 label = labels[n];
        // All threads of the block take the same branch, so either all of them reach the barriers below or none.
        if (label < 0) {
            for (i64 c = threadIdx.x; c < classes; c += blockDim.x) AT2(dx, n, c) = 0;
            if (threadIdx.x == 0) loss[n] = hits[n] = 0;
            continue;
        }
        i64 best = threadIdx.x;
        WIDE most = best < classes ? (WIDE)AT2(x, n, best) : (WIDE)(-1.0 / 0.0);
        for (i64 c = best + blockDim.x; c < classes; c += blockDim.x) {
            const WIDE v = AT2(x, n, c);
            if (v > most) {
                most = v;
                best = c;
            }
        }
        value[threadIdx.x] = most;
        place[threadIdx.x] = best;
        __syncthreads();
        for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) {
                const WIDE v = value[threadIdx.x + half];
                const i64 c = place[threadIdx.x + half];
                if (v > value[threadIdx.x] || (v == value[threadIdx.x] && c < place[threadIdx.x])) {
                    value[threadIdx.x] = v;
                    place[threadIdx.x] = c;
                }
            }
            __syncthreads();
        }
        most = value[0];
        best = place[0];
        double sum = 0;
        for (i64 c = threadIdx.x; c < classes; c += blockDim.x) sum += (double)exp(AT2(x, n, c) - most);
        sum = block_sum(sum, part);
        if (threadIdx.x == 0) {
            // An invalid label makes the loss NaN, which stops the run, instead of a read out of bounds.
            loss[n] = label < classes ? log(sum) - (double)(AT2(x, n, label) - most) : (double)(0.0 / 0.0);
            hits[n] = best == label ? 1.0 : 0.0;
        }
        __syncthreads();  // dx may be x
        for (i64 c = threadIdx.x; c < classes; c += blockDim.x) {
            const double share = (double)exp(AT2(x, n, c) - most) / sum;
            AT2(dx, n, c) = (REAL)(scale * (share - (c == label ? 1.0 : 0.0)));
        }
    }
}

KERNEL logistic_cross_entropy(
    VIEW2(const REAL, x), const i64 *labels, VIEW2(REAL, dx), double *loss, i64 samples, i64 classes, i64 first_class, double scale) {
    __shared__ double part[MAX_THREADS];
    for (i64 n = blockIdx.x; n < samples; n += gridDim.x) {
        const i64 label = labels[n];
        const i64 target = label - first_class;
        double sum = 0;
        for (i64 c = threadIdx.x; c < classes; c += blockDim.x) {
            const WIDE v = AT2(x, n, c);
            // exp of a non-positive number cannot overflow.
            const WIDE small = exp(v > 0 ? -v : v);
            const WIDE truth = c == target ? (WIDE)1 : (WIDE)0;
            const WIDE sigmoid = (v > 0 ? (WIDE)1 : small) / ((WIDE)1 + small);
            if (label >= 0) sum += (double)((v > 0 ? v : (WIDE)0) - (c == target ? v : (WIDE)0)) + (double)log1p(small);
            AT2(dx, n, c) = label >= 0 ? (REAL)(scale * (double)(sigmoid - truth)) : (REAL)0;
        }
        sum = block_sum(sum, part);
        if (threadIdx.x == 0) loss[n] = sum;
    }
}

// Elements whose target is NaN (padding) are ignored.
KERNEL mean_squared_error(
    VIEW2(const REAL, x), VIEW2(const REAL, targets), VIEW2(REAL, dx), double *loss, i64 samples, i64 outputs, double scale) {
    __shared__ double part[MAX_THREADS];
    for (i64 n = blockIdx.x; n < samples; n += gridDim.x) {
        double sum = 0;
        for (i64 c = threadIdx.x; c < outputs; c += blockDim.x) {
            const WIDE target = AT2(targets, n, c);
            const WIDE difference = target == target ? AT2(x, n, c) - target : (WIDE)0;
            sum += (double)difference * (double)difference;
            AT2(dx, n, c) = (REAL)(2.0 * scale * (double)difference);
        }
        sum = block_sum(sum, part);
        if (threadIdx.x == 0) loss[n] = sum;
    }
}
