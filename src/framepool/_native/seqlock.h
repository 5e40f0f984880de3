/* The four steps by which a slot changes hands, with the memory order of each: all that writers and readers of
 * `seq_commit` may do to it (Wire 8.3, 15.3).
 *
 * - begin: the in-progress word, then a release fence: no store to header or payload moves above it;
 * - commit: the committed word, stored with release: no such store moves below it;
 * - look: the word, loaded with acquire: no load of header or payload moves above it;
 * - look_again: an acquire fence, then the word: no such load moves below it.
 *
 * What lies between is copied by memcpy and may race with a writer; the copy is used only once `look_again` has shown
 * that there was none. tests/model/seqlock_model.py is this file for a machine that reorders whatever it may, explored in
 * full; tests/model/seqlock_stress.c is compiled from it with ThreadSanitizer. */
#ifndef FRAMEPOOL_SEQLOCK_H
#define FRAMEPOOL_SEQLOCK_H

#include <stdatomic.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "framepool's shared memory is little-endian only (Wire 15.1)"
#endif
_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "seq_commit needs lock-free atomics");

static inline void fp_slot_begin(void *slot, uint64_t seq)
{
    atomic_store_explicit((_Atomic uint64_t *)slot, seq << 1, memory_order_release);
    atomic_thread_fence(memory_order_release);
}

static inline void fp_slot_commit(void *slot, uint64_t seq)
{
    atomic_store_explicit((_Atomic uint64_t *)slot, seq << 1 | 1, memory_order_release);
}

static inline uint64_t fp_slot_look(const void *slot)
{
    return atomic_load_explicit((_Atomic uint64_t *)slot, memory_order_acquire);
}

static inline uint64_t fp_slot_look_again(const void *slot)
{
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit((_Atomic uint64_t *)slot, memory_order_acquire);
}

#endif
