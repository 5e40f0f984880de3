/* Frames as a reader finds them that was stopped while its log was written over. Run by test_receive.py. */
#define _GNU_SOURCE
#include "aeron_api.h"
#include "aeron_receive.h"

#define CHECK(condition) \
    do { if (!(condition)) { printf("line %d: %s\n", __LINE__, #condition); return 1; } } while (0)

static _Alignas(4096) uint8_t term[65536];
static int delivered;
static int retracted;
static bool overwrite;

static uint8_t *frame_at(int32_t offset, size_t length, uint8_t flags)
{
    const fp_frame_t frame =
    {
        .frame_length = (int32_t)length + FP_FRAME_HEADER, .flags = flags, .type = FP_FRAME_DATA,
        .term_offset = offset, .session_id = 7, .stream_id = 10, .term_id = 3,
    };
    memcpy(term + offset, &frame, sizeof(frame));
    return term + offset + FP_FRAME_HEADER;
}

static void on_message(void *clientd, const uint8_t *buffer, size_t length)
{
    delivered++;
    if (overwrite)
    {
        memset(term, 0, sizeof(term)); /* the media driver wipes the term while we copy out of it */
    }
}

static void on_retract(void *clientd)
{
    retracted++;
}

int main(void)
{
    fp_receiver_t receiver =
    {
        .filter = { .schema_id = -1, .template_id = -1 }, .stream_id = 10,
        .deliver = on_message, .retract = on_retract,
    };
    const uint8_t whole = FP_FLAG_BEGIN | FP_FLAG_END;

    /* a sound frame */
    fp_receiver_on_fragment(&receiver, frame_at(0, 48, whole), 48, NULL);
    CHECK(1 == delivered && 0 == retracted && 0 == receiver.broken);

    /* another frame's middle: each field by itself gives it away */
    uint8_t *payload = frame_at(96, 48, whole);
    fp_frame_t *frame = (fp_frame_t *)(payload - FP_FRAME_HEADER);
    const fp_frame_t sound = *frame;
    frame->term_offset = 128;
    fp_receiver_on_fragment(&receiver, payload, 48, NULL);
    *frame = sound;
    frame->stream_id = 11;
    fp_receiver_on_fragment(&receiver, payload, 48, NULL);
    *frame = sound;
    frame->frame_length = 0;
    fp_receiver_on_fragment(&receiver, payload, 48, NULL);
    *frame = sound;
    frame->version = 9;
    fp_receiver_on_fragment(&receiver, payload, 48, NULL);
    *frame = sound;
    frame->type = 5;
    fp_receiver_on_fragment(&receiver, payload, 48, NULL);
    CHECK(1 == delivered && 5 == receiver.broken);

    /* overwritten while it is copied: delivered and taken back */
    overwrite = true;
    fp_receiver_on_fragment(&receiver, frame_at(0, 48, whole), 48, NULL);
    CHECK(2 == delivered && 1 == retracted && 6 == receiver.broken && 1 == receiver.delivered);

    /* overwritten at its last fragment: the message is taken back too */
    overwrite = false;
    fp_receiver_on_fragment(&receiver, frame_at(0, 96, FP_FLAG_BEGIN), 96, NULL);
    CHECK(2 == delivered && 1 == receiver.partial_count);
    overwrite = true;
    fp_receiver_on_fragment(&receiver, frame_at(128, 32, FP_FLAG_END), 32, NULL);
    CHECK(3 == delivered && 2 == retracted && 7 == receiver.broken);

    /* a last fragment whose beginning is gone makes no message */
    overwrite = false;
    fp_receiver_on_fragment(&receiver, frame_at(192, 32, FP_FLAG_END), 32, NULL);
    CHECK(3 == delivered && 8 == receiver.broken);

    /* a message beyond every limit is given up, and the next one is whole */
    for (int i = 0; i * 32768 <= (int)FP_MESSAGE_MAX; i++)
    {
        frame_at(0, 32768, 0 == i ? FP_FLAG_BEGIN : 0);
        if (i > 0)
        {
            receiver.partials->expected_offset = 0;
        }
        fp_receiver_on_fragment(&receiver, term + FP_FRAME_HEADER, 32768, NULL);
    }
    CHECK(3 == delivered && 9 == receiver.broken);
    fp_receiver_on_fragment(&receiver, frame_at(0, 48, whole), 48, NULL);
    CHECK(4 == delivered);

    fp_receiver_clear(&receiver);
    CHECK(0 == receiver.partial_count);
    puts("ok");
    return 0;
}
