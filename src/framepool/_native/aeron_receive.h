/* The receiving side in C: which messages are for us, and whole messages out of fragments.
 *
 * Nothing here knows Python, so the drain's thread (aeron_drain.h) may run all of it without the interpreter's lock.
 * Include after aeron_api.h.
 */
#ifndef FRAMEPOOL_AERON_RECEIVE_H
#define FRAMEPOOL_AERON_RECEIVE_H

#include <stdlib.h>

#include "aeron_ahead.h"
#include "payload.h"

/* ---- filter: the SBE header is blockLength, templateId, schemaId, version, each u16 ---- */

#define FP_PATTERN_MAX 260 /* a tag of an event with its length */

typedef struct
{
    int32_t schema_id;   /* -1: any */
    int32_t template_id; /* -1: any */
    size_t offset;
    bool after_block; /* the offset counts from the end of the block, by the message's own blockLength */
    size_t length; /* 0: no pattern */
    uint8_t pattern[FP_PATTERN_MAX];
}
fp_filter_t;

static inline uint32_t fp_u16(const uint8_t *at)
{
    return (uint32_t)at[0] | ((uint32_t)at[1] << 8);
}

static inline bool fp_filter_accepts(const fp_filter_t *filter, const uint8_t *buffer, size_t length)
{
    if (filter->schema_id >= 0 && (length < 8 || fp_u16(buffer + 4) != (uint32_t)filter->schema_id))
    {
        return false;
    }
    if (filter->template_id >= 0 && (length < 8 || fp_u16(buffer + 2) != (uint32_t)filter->template_id))
    {
        return false;
    }
    if (0 == filter->length)
    {
        return true;
    }
    size_t offset = filter->offset;
    if (filter->after_block)
    {
        if (length < 8)
        {
            return false;
        }
        offset += 8 + fp_u16(buffer);
    }
    return length >= offset && length - offset >= filter->length &&
        0 == memcmp(buffer + offset, filter->pattern, filter->length);
}

/* ---- assembler: one growing buffer per session that sends fragments ---- */

#define FP_FRAME_HEADER 32
#define FP_FRAME_DATA 1
#define FP_FLAG_BEGIN 0x80
#define FP_FLAG_END 0x40
#define FP_PAGE_MASK 4095
#define FP_MESSAGE_MAX (16u * 1024 * 1024)

/* Aeron's data frame header, which stands right before a fragment's payload in the log. */
typedef struct
{
    int32_t frame_length;
    uint8_t version;
    uint8_t flags;
    uint16_t type;
    int32_t term_offset;
    int32_t session_id;
    int32_t stream_id;
    int32_t term_id;
    int64_t reserved_value; /* the application's; 0 unless the sender set it */
}
fp_frame_t;

_Static_assert(FP_FRAME_HEADER == sizeof(fp_frame_t), "another data frame header than Aeron's");

typedef struct fp_partial_stct
{
    struct fp_partial_stct *next;
    int32_t session_id;
    int32_t expected_offset; /* where the next fragment begins; -1: waiting for a first fragment */
    bool live;               /* used within a sweep only */
    int64_t reserved_value;  /* of the first fragment */
    size_t length;
    size_t capacity;
    uint8_t *buffer;
}
fp_partial_t;

/* What who waits for a message will look at next: lines that are with its sender, to be fetched together with it. */
typedef struct
{
    const uint8_t *slot; /* NULL: nothing is known */
    const uint8_t *payload;
}
fp_coming_t;

typedef void (*fp_deliver_t)(void *clientd, const uint8_t *buffer, size_t length);
typedef void (*fp_retract_t)(void *clientd);

typedef struct
{
    fp_filter_t filter;
    fp_partial_t *partials;
    int partial_count;
    int32_t stream_id;
    fp_deliver_t deliver;
    fp_retract_t retract; /* takes the last delivery back */
    void *clientd;
    size_t most;            /* bytes of a message in fragments at the most; 0: FP_MESSAGE_MAX */
    int64_t reserved_value; /* of the message that is being delivered */
    uint64_t delivered;
    uint64_t filtered;
    uint64_t broken; /* fragments without their beginning, frames overwritten while they were read, or no memory */
    uint64_t completed; /* messages that were whole, delivered or filtered */
    fp_ahead_read_t ahead;
    const fp_coming_t *coming;
    bool ours; /* the last message was for us, so the next one may be */
}
fp_receiver_t;

static inline void fp_receiver_complete(
    fp_receiver_t *receiver, const uint8_t *buffer, size_t length, int64_t reserved_value)
{
    receiver->completed++;
    receiver->reserved_value = reserved_value;
    receiver->ours = fp_filter_accepts(&receiver->filter, buffer, length);
    if (receiver->ours)
    {
        receiver->delivered++;
        receiver->deliver(receiver->clientd, buffer, length);
    }
    else
    {
        receiver->filtered++;
    }
}

static fp_partial_t *fp_receiver_partial(fp_receiver_t *receiver, int32_t session_id)
{
    fp_partial_t *partial = receiver->partials;

    while (NULL != partial && partial->session_id != session_id)
    {
        partial = partial->next;
    }
    if (NULL == partial && NULL != (partial = calloc(1, sizeof(*partial))))
    {
        partial->session_id = session_id;
        partial->expected_offset = -1;
        partial->next = receiver->partials;
        receiver->partials = partial;
        receiver->partial_count++;
    }
    return partial;
}

/* The message that a session is in the middle of cannot be completed any more. */
static void fp_receiver_forget(fp_receiver_t *receiver, int32_t session_id)
{
    for (fp_partial_t *partial = receiver->partials; NULL != partial; partial = partial->next)
    {
        if (partial->session_id == session_id)
        {
            partial->expected_offset = -1;
        }
    }
}

static bool fp_partial_append(fp_partial_t *partial, const uint8_t *buffer, size_t length, size_t most)
{
    const size_t needed = partial->length + length;

    if (needed > (0 == most ? FP_MESSAGE_MAX : most))
    {
        return false;
    }
    if (needed > partial->capacity)
    {
        size_t capacity = partial->capacity < 4096 ? 4096 : partial->capacity;
        while (capacity < needed)
        {
            capacity *= 2;
        }
        uint8_t *grown = realloc(partial->buffer, capacity);
        if (NULL == grown)
        {
            return false;
        }
        partial->buffer = grown;
        partial->capacity = capacity;
    }
    memcpy(partial->buffer + partial->length, buffer, length);
    partial->length = needed;
    return true;
}

static void fp_receiver_fragment(
    fp_receiver_t *receiver, const fp_frame_t *frame, const uint8_t *buffer, size_t length)
{
    fp_partial_t *partial = fp_receiver_partial(receiver, frame->session_id);

    if (NULL == partial)
    {
        receiver->broken++;
        return;
    }
    if (frame->flags & FP_FLAG_BEGIN)
    {
        partial->length = 0;
        partial->reserved_value = frame->reserved_value;
    }
    else if (partial->expected_offset != frame->term_offset)
    {
        partial->expected_offset = -1;
        receiver->broken++;
        return;
    }
    if (!fp_partial_append(partial, buffer, length, receiver->most))
    {
        partial->expected_offset = -1;
        receiver->broken++;
        return;
    }
    if (frame->flags & FP_FLAG_END)
    {
        partial->expected_offset = -1;
        fp_receiver_complete(receiver, partial->buffer, partial->length, partial->reserved_value);
    }
    else
    {
        partial->expected_offset = frame->term_offset + (int32_t)((length + FP_FRAME_HEADER + 31) & ~(size_t)31);
    }
}

/* Whether what stands before the payload is the header of this very frame. An untethered reader that was stopped and
 * wakes finds its place in the log overwritten, perhaps by the middle of another frame. */
static inline bool fp_frame_is_sound(
    const fp_frame_t *frame, const fp_receiver_t *receiver, const uint8_t *at, size_t length)
{
    return frame->frame_length == (int32_t)(length + FP_FRAME_HEADER) && 0 == frame->version &&
        FP_FRAME_DATA == frame->type && frame->stream_id == receiver->stream_id &&
        ((uintptr_t)frame->term_offset & FP_PAGE_MASK) == ((uintptr_t)at & FP_PAGE_MASK);
}

/* Aeron's fragment handler. The media driver wipes a frame before it is written over, so a header that has not changed
 * after the copy says that the copy is whole: the same way in which slots are read. */
static void fp_receiver_on_fragment(void *clientd, const uint8_t *buffer, size_t length, aeron_header_t *header)
{
    fp_receiver_t *receiver = (fp_receiver_t *)clientd;
    const uint8_t *at = buffer - FP_FRAME_HEADER;
    const uint64_t before = receiver->delivered;
    fp_frame_t frame;
    (void)header;

    if (NULL != receiver->coming && receiver->ours)
    {
        fp_expect_reads(buffer + length - 1, 1);
        fp_expect_reads(receiver->coming->slot, 1);
        fp_expect_reads(receiver->coming->payload, 1);
    }
    memcpy(&frame, at, sizeof(frame));
    if (!fp_frame_is_sound(&frame, receiver, at, length))
    {
        receiver->broken++;
        return;
    }
    fp_ahead_read(&receiver->ahead, at, frame.term_offset);
    if ((frame.flags & (FP_FLAG_BEGIN | FP_FLAG_END)) == (FP_FLAG_BEGIN | FP_FLAG_END))
    {
        fp_receiver_complete(receiver, buffer, length, frame.reserved_value);
    }
    else
    {
        fp_receiver_fragment(receiver, &frame, buffer, length);
    }
    atomic_thread_fence(memory_order_acquire);
    if (0 != memcmp(&frame, at, sizeof(frame)))
    {
        receiver->broken++;
        if (receiver->delivered != before)
        {
            receiver->delivered--;
            receiver->retract(receiver->clientd);
        }
        fp_receiver_forget(receiver, frame.session_id);
    }
}

static void fp_receiver_clear(fp_receiver_t *receiver)
{
    while (NULL != receiver->partials)
    {
        fp_partial_t *partial = receiver->partials;
        receiver->partials = partial->next;
        free(partial->buffer);
        free(partial);
    }
    receiver->partial_count = 0;
}

static void fp_mark_live(aeron_image_t *image, void *clientd)
{
    fp_receiver_t *receiver = (fp_receiver_t *)clientd;
    aeron_image_constants_t constants;

    if (0 == fp_api.aeron_image_constants(image, &constants))
    {
        for (fp_partial_t *partial = receiver->partials; NULL != partial; partial = partial->next)
        {
            if (partial->session_id == constants.session_id)
            {
                partial->live = true;
            }
        }
    }
}

/* Frees the buffers of sessions that have gone, so that publishers which come and go leave nothing behind. */
static void fp_receiver_sweep(fp_receiver_t *receiver, aeron_subscription_t *subscription)
{
    if (receiver->partial_count <= fp_api.aeron_subscription_image_count(subscription))
    {
        return;
    }
    fp_api.aeron_subscription_for_each_image(subscription, fp_mark_live, receiver);
    for (fp_partial_t **link = &receiver->partials; NULL != *link;)
    {
        fp_partial_t *partial = *link;
        if (partial->live)
        {
            partial->live = false;
            link = &partial->next;
        }
        else
        {
            *link = partial->next;
            free(partial->buffer);
            free(partial);
            receiver->partial_count--;
        }
    }
}

/* Polls until a message is whole or nothing is left: a message of many fragments needs no more calls than a small
 * one. Returns the fragments read. */
static int fp_receiver_poll(fp_receiver_t *receiver, aeron_subscription_t *subscription, size_t limit)
{
    const uint64_t before = receiver->completed;
    int total = 0;
    int read;

    do
    {
        read = fp_api.aeron_subscription_poll(subscription, fp_receiver_on_fragment, receiver, limit);
        total += read > 0 ? read : 0;
    }
    while (read > 0 && receiver->completed == before);

    if (receiver->partial_count > 0)
    {
        fp_receiver_sweep(receiver, subscription);
    }
    return total;
}

/* ---- images: what a subscription receives from ---- */

#define FP_IMAGES_MAX 128
#define FP_SOURCE_MAX 128

typedef struct
{
    int32_t session_id;
    int32_t initial_term_id;
    int64_t correlation_id;
    int64_t join_position;
    int64_t position;
    int64_t term_length;
    int64_t mtu_length;
    int closed;
    int end_of_stream;
    char source[FP_SOURCE_MAX];
}
fp_image_t;

typedef struct
{
    int count;
    fp_image_t images[FP_IMAGES_MAX];
}
fp_images_t;

static void fp_images_add(aeron_image_t *image, void *clientd)
{
    fp_images_t *images = (fp_images_t *)clientd;
    aeron_image_constants_t constants;

    if (images->count < FP_IMAGES_MAX && 0 == fp_api.aeron_image_constants(image, &constants))
    {
        fp_image_t *entry = &images->images[images->count++];
        entry->session_id = constants.session_id;
        entry->initial_term_id = constants.initial_term_id;
        entry->correlation_id = constants.correlation_id;
        entry->join_position = constants.join_position;
        entry->position = fp_api.aeron_image_position(image);
        entry->term_length = (int64_t)constants.term_buffer_length;
        entry->mtu_length = (int64_t)constants.mtu_length;
        entry->closed = fp_api.aeron_image_is_closed(image);
        entry->end_of_stream = fp_api.aeron_image_is_end_of_stream(image);
        snprintf(entry->source, FP_SOURCE_MAX, "%s", constants.source_identity);
    }
}

static void fp_images_read(fp_images_t *images, aeron_subscription_t *subscription)
{
    images->count = 0;
    fp_api.aeron_subscription_for_each_image(subscription, fp_images_add, images);
}

#endif
