/* Counts the bytes that memcpy and memmove are asked to copy, in blocks that can only be payload; for LD_PRELOAD.
 * Run by test_bridge_copies.py. */
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>

#define SMALLEST 1024

static atomic_ullong copied;

unsigned long long bytes_copied(void)
{
    return atomic_load(&copied);
}

static void *carry(void *target, const void *source, size_t length)
{
    unsigned char *to = target;
    const unsigned char *from = source;

    if (length >= SMALLEST)
    {
        atomic_fetch_add(&copied, length);
    }
    if (to <= from || to >= from + length)
    {
        for (size_t i = 0; i < length; i++)
        {
            to[i] = from[i];
        }
    }
    else
    {
        while (length--)
        {
            to[length] = from[length];
        }
    }
    return target;
}

void *memcpy(void *restrict target, const void *restrict source, size_t length)
{
    return carry(target, source, length);
}

void *memmove(void *target, const void *source, size_t length)
{
    return carry(target, source, length);
}

void *__memcpy_chk(void *target, const void *source, size_t length, size_t room)
{
    (void)room;
    return carry(target, source, length);
}

void *__memmove_chk(void *target, const void *source, size_t length, size_t room)
{
    (void)room;
    return carry(target, source, length);
}
