/* When naps end: at instants that all threads and processes have in common, and never before or long after they should. */
#define _GNU_SOURCE
#include <stdio.h>

#include "nap.h"

#define MS 1000000LL
#define CHECK(condition) \
    do { if (!(condition)) { printf("line %d at %lld: %s\n", __LINE__, (long long)now, #condition); return 1; } } while (0)

int main(void)
{
    for (int64_t now = 1000 * MS; now < 1130 * MS; now += 9973)
    {
        const int64_t spans[] = { 1, 200000, 15 * MS, 16 * MS, 20 * MS, 32 * MS, 100 * MS };
        for (unsigned i = 0; i < sizeof(spans) / sizeof(*spans); i++)
        {
            const int64_t span = spans[i];
            const int64_t grid = span < 16 * MS ? 0 : span < 32 * MS ? 16 * MS : span < 64 * MS ? 32 * MS : 64 * MS;
            const int64_t until = fp_nap_until(now, span);
            CHECK(until > now && until <= now + span);
            CHECK(0 == grid ? until == now + span : 0 == (until + FP_NAP_EARLY_NS) % grid);
            CHECK((0 == grid) == (prctl(PR_GET_TIMERSLACK) < (int)FP_NAP_LATE_NS));

            const int64_t wait = fp_wait_until(now, span, 32 * MS);
            CHECK(wait >= now + span && wait < now + span + 32 * MS);
            CHECK(0 == grid ? wait == now + span : 0 == (wait + FP_NAP_EARLY_NS) % (16 * MS));
            CHECK(fp_wait_until(now, span, 4 * MS) == now + span); /* who does not nap so long is on time */
        }
        fp_nap_exactly(true);
        CHECK(prctl(PR_GET_TIMERSLACK) < (int)FP_NAP_LATE_NS);
    }
    puts("ok");
    return 0;
}
