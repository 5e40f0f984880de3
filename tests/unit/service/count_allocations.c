/* Counts what each thread asks of the C library's allocator. Preloaded by test_allocation.py. */
#include <stddef.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);

static __thread unsigned long asked __attribute__((tls_model("initial-exec")));

unsigned long allocations(void)
{
    return asked;
}

void *malloc(size_t size)
{
    asked++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    asked++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    asked++;
    return __libc_realloc(old, size);
}
