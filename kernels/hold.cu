// Keeps its stream busy, so that later work waits in line.
#include "common.cuh"

KERNEL hold(i64 ticks) {
    const i64 begin = clock64();
    while (clock64() - begin < ticks) {}
}
