/* Memory that is mapped twice in a row: what runs over the end of the first is at the start of it, so a record is
   contiguous wherever it begins. Pages are touched at once, because a fault in the middle of a copy costs frames. */
#ifndef FP_RECORDING_H
#define FP_RECORDING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* Positions of the staging buffer: what is before one was written, or read, before it was stored. */
static inline uint64_t fp_position(const uint64_t *position) {
    return atomic_load_explicit((const _Atomic uint64_t *)position, memory_order_acquire);
}
static inline void fp_set_position(uint64_t *position, uint64_t value) {
    atomic_store_explicit((_Atomic uint64_t *)position, value, memory_order_release);
}

static unsigned char *fp_map_twice(size_t capacity) {
    unsigned char *base;
    int fd = memfd_create("framepool-staging", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    if (ftruncate(fd, (off_t)capacity) != 0) {
        close(fd);
        return NULL;
    }
    base = mmap(NULL, 2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int half = 0; base != MAP_FAILED && half < 2; half++) {
        int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
        if (mmap(base + half * capacity, capacity, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED) {
            munmap(base, 2 * capacity);
            base = MAP_FAILED;
        }
    }
    close(fd);
    return base == MAP_FAILED ? NULL : base;
}

static void fp_unmap_twice(unsigned char *base, size_t capacity) { munmap(base, 2 * capacity); }

#endif
